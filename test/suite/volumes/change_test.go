package volumes

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// open logs in to a LUN.
func (d *daemon) open(lun int) (*block.Volume, func()) {
	d.t.Helper()
	return d.openAs("iqn.2026-11.io.sluice:test", lun)
}

// openAs is open as an initiator of that name.
func (d *daemon) openAs(initiator string, lun int) (*block.Volume, func()) {
	d.t.Helper()
	rnic := iwarp.New(iwarp.Options{})
	i, err := block.New(block.Options{Name: initiator, Device: rnic})
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := i.Open(ctx, d.url(lun))
	if err != nil {
		d.t.Fatal(err)
	}
	var once sync.Once
	end := func() {
		once.Do(func() {
			_ = v.Close() // its target may be gone
			_ = i.Close()
			_ = rnic.Close()
		})
	}
	d.t.Cleanup(end)
	return v, end
}

// A medium that does not answer keeps what uses it, and nothing else: unmapping and removing its volume, health, lists and
// other volumes' changes are answered.
func TestAMediumThatHangsStopsNothingElse(t *testing.T) {
	slow := "  - {name: slow, engine: delay, delay: 120s, size: 1MiB}\n"
	d := prepare(t, slow+"  - {name: v, path: v.img}\n", "slow", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	v, end := d.open(0)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = v.Raw(context.Background(), []byte{0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0}, make([]byte, 512), true)
	}()
	for d.inflight() == 0 {
		time.Sleep(time.Millisecond) // a count has no event
	}
	begin := time.Now()
	d.configure(slow+"  - {name: v, path: v.img}\n", "v")
	d.must("reload")
	d.configure("  - {name: v, path: v.img}\n", "v")
	d.must("reload")
	d.must("volume", "resize", "v", "2MiB")
	d.must("volume", "list")
	d.healthy()
	if took := time.Since(begin); took > 100*time.Second {
		t.Errorf("the changes took %v: they waited for the medium", took)
	}
	if _, there := d.volumes()["slow"]; there || d.volumes()["v"].Size != 2<<20 {
		t.Errorf("volumes %+v", d.volumes())
	}
	end()
	<-sent
}

// healthy asks the daemon as a monitor would.
func (d *daemon) healthy() {
	d.t.Helper()
	c := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(d.state, "admin.sock"))
	}}}
	r, err := c.Get("http://sluiced/healthz")
	if err != nil {
		d.t.Fatal(err)
	}
	if err := r.Body.Close(); err != nil || r.StatusCode != http.StatusOK {
		d.t.Errorf("/healthz answers %s, %v", r.Status, err)
	}
}

// inflight is how many commands run in all sessions.
func (d *daemon) inflight() int {
	d.t.Helper()
	n := 0
	for _, s := range read[[]struct {
		Inflight int `json:"inflight"`
	}](d, "session", "list") {
		n += s.Inflight
	}
	return n
}

// inSmallRoom runs the daemon with a file system of n bytes at DIR/small, in a mount namespace of its own.
func (d *daemon) inSmallRoom(n int) *daemon {
	d.t.Helper()
	need.Root(d.t)
	if err := os.MkdirAll(d.path("small"), 0o700); err != nil {
		d.t.Fatal(err)
	}
	script := fmt.Sprintf(`mount -t tmpfs -o size=%d tmpfs %q && truncate -s 1M %[2]q/v.img && exec "$0" "$@"`, n, d.path("small"))
	return d.start(need.Tool(d.t, "unshare", "util-linux"), "--mount", "sh", "-c", script)
}

// A growth that finds no room is refused as a whole: file, LUN and what is written down stay as they were, and so do the
// other volumes of the same change.
func TestGrowthWithoutRoomChangesNothing(t *testing.T) {
	d := prepare(t, "  - {name: v, path: small/v.img, thick: true}\n  - {name: w, path: w.img}", "v", "w")
	d.sparse("w.img", 1<<20)
	d.inSmallRoom(4 << 20)
	img := fmt.Sprintf("/proc/%d/root%s", d.cmd.Process.Pid, d.path("small/v.img"))
	is := func() {
		t.Helper()
		for lun, f := range []string{img, d.path("w.img")} {
			if n, c := d.size(f), d.capacity(lun); n != 1<<20 || c != 1<<20 {
				t.Errorf("LUN %d has %d bytes and its file %d", lun, c, n)
			}
		}
	}
	is()
	d.refused("no space", "volume", "resize", "v", "64MiB")
	is()
	if m := d.managed(); strings.Contains(m, "64MiB") {
		t.Errorf("written down is\n%s", m)
	}
	d.configure("  - {name: v, path: small/v.img, thick: true, size: 64MiB}\n  - {name: w, path: w.img, size: 2MiB}", "v", "w")
	d.refused("no space", "reload")
	is()
	d.configure("  - {name: v, path: small/v.img, thick: true, size: 2MiB}\n  - {name: w, path: w.img, size: 2MiB}", "v", "w")
	d.must("reload")
	if c := d.capacity(0); c != 2<<20 {
		t.Errorf("with room the LUN has %d bytes", c)
	}
}

// A change that cannot be written down is not made, and what it made is gone.
func TestAChangeThatCannotBeWrittenDownIsNotMade(t *testing.T) {
	need.Root(t)
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	// The rename meets a mount point, which cannot be replaced (rename(2), EBUSY).
	d.must("target", "create", target+"-other")
	d.must("volume", "create", "other", "1MiB")
	d.must("target", "map", target+"-other", "0", "other")
	before := d.must("volume", "list") + d.must("target", "list")
	nsenter := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	m := filepath.Join(d.state, "managed.yaml")
	text := d.managed()
	nsenter("mount", "--bind", m, m)
	mounted := true
	umount := func() {
		if mounted {
			mounted = false
			nsenter("umount", m)
		}
	}
	t.Cleanup(umount)
	d.refused("managed.yaml", "volume", "resize", "v", "2MiB")
	d.refused("managed.yaml", "target", "create", target+"-more")
	d.refused("managed.yaml", "volume", "create", "new", "1MiB")
	d.refused("managed.yaml", "target", "unmap", target+"-other", "0")
	if after := d.must("volume", "list") + d.must("target", "list"); after != before {
		t.Errorf("after refusals\n%s\nbefore\n%s", after, before)
	}
	if n, c := d.size(d.path("v.img")), d.capacity(0); n != 1<<20 || c != 1<<20 {
		t.Errorf("the LUN has %d bytes and its file %d", c, n)
	}
	if _, err := os.Stat(filepath.Join(d.state, "new.img")); err == nil {
		t.Error("the file of a volume that was refused is there")
	}
	umount()
	if d.managed() != text {
		t.Errorf("written down is\n%s", d.managed())
	}
	if left, _ := filepath.Glob(filepath.Join(d.state, ".managed.yaml-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	d.must("volume", "resize", "v", "2MiB")
	if c := d.capacity(0); c != 2<<20 {
		t.Errorf("then the LUN has %d bytes", c)
	}
}

// SIGKILL in the middle of growth leaves a volume that is served, has the old size or a new one, and its content.
func TestAResizeUnderSIGKILL(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img, size: 1MiB, thick: true}", "v")
	img := d.file("v.img", 1<<20, 'x')
	size := int64(1 << 20)
	for round := range 9 {
		d.start()
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.sluice("volume", "resize", "v", fmt.Sprint(size+4<<20))
		}()
		// Killed at once, when the file shows that it is under way, or when it is about to be written down.
		under := func() bool {
			ready, _ := filepath.Glob(filepath.Join(d.state, ".managed.yaml-*"))
			return round%3 == 0 || round%3 == 1 && d.size(img) != size || round%3 == 2 && len(ready) > 0
		}
		for running := true; running && !under(); {
			select {
			case <-done:
				running = false
			default:
			}
		}
		d.kill()
		<-done
		d.start()
		now := d.size(img)
		if now != size && now != size+4<<20 {
			t.Fatalf("round %d: the file has %d bytes, neither %d nor 4 MiB more", round, now, size)
		}
		if c := d.capacity(0); c != now {
			t.Fatalf("round %d: the LUN has %d bytes, its file %d", round, c, now)
		}
		size = now
		d.kill()
	}
	b, err := os.ReadFile(img)
	if err != nil || strings.Trim(string(b[:1<<20]), "x") != "" {
		t.Errorf("the content has changed: %v", err)
	}
}
