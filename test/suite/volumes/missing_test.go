package volumes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// notReady wants a LUN that has no medium, for the reason with that code: 3A/00, with which libiscsi shows a disk and finds no
// capacity, or another, with which its login fails.
func (d *daemon) notReady(lun int, asc uint16) {
	d.t.Helper()
	out, err := tool(d.t, "iscsi-inq", d.url(lun))
	if asc != 0x3A00 {
		if want := fmt.Sprintf("NOT READY(2) ASCQ:(null)(0x%04x)", asc); err == nil || !strings.Contains(out, want) {
			d.t.Errorf("LUN %d: %v, want %s\n%s", lun, err, want, out)
		}
		return
	}
	if err != nil || !strings.Contains(out, "DIRECT_ACCESS") {
		d.t.Errorf("INQUIRY of LUN %d: %v\n%s", lun, err, out)
	}
	if _, err := tool(d.t, "iscsi-readcapacity16", d.url(lun)); err == nil {
		d.t.Errorf("LUN %d has a capacity", lun)
	}
}

// A file that is missing, with a configured size or without, makes its LUN not ready; no file is made in its place and
// everything else is served. It is found when it comes back, by a reload, and is the disk that it was.
func TestAMissingFileLeavesItsLUNNotReady(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}\n  - {name: sized, path: fs/sized.img, size: 1MiB}\n  - {name: bare, path: fs/bare.img}", "v", "sized", "bare")
	d.sparse("v.img", 1<<20)
	if err := os.Mkdir(d.path("fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.file("fs/sized.img", 1<<20, 's')
	d.file("fs/bare.img", 1<<20, 'b')
	d.start()
	ids := []string{d.identity(1), d.identity(2)}
	d.stop()
	// The file system is not mounted: there is its mount point.
	if err := os.Rename(d.path("fs"), d.path("unmounted")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(d.path("fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.start()
	for lun, id := range ids {
		d.notReady(lun+1, 0x3A00)
		if got := d.identity(lun + 1); got != id {
			t.Errorf("LUN %d without its file is\n%s\nwith it\n%s", lun+1, got, id)
		}
	}
	if c := d.capacity(0); c != 1<<20 {
		t.Errorf("the other volume has %d bytes", c)
	}
	for _, n := range []string{"sized", "bare"} {
		if p := d.volumes()[n].Problem; !strings.Contains(p, "missing") || !strings.Contains(p, "sluice volume create "+n) {
			t.Errorf("the problem of %s is %q", n, p)
		}
	}
	d.must("reload")
	d.must("volume", "resize", "v", "2MiB")
	if made, _ := filepath.Glob(d.path("fs/*")); len(made) != 0 {
		t.Fatalf("files were made: %v", made)
	}
	d.healthy()
	if err := os.Remove(d.path("fs")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(d.path("unmounted"), d.path("fs")); err != nil {
		t.Fatal(err)
	}
	d.must("reload")
	for lun, id := range ids {
		if c := d.capacity(lun + 1); c != 1<<20 || d.identity(lun+1) != id {
			t.Errorf("LUN %d has %d bytes and is\n%s\nbefore\n%s", lun+1, c, d.identity(lun+1), id)
		}
	}
	for n, c := range map[string]string{"sized": "s", "bare": "b"} {
		b, err := os.ReadFile(d.path("fs/" + n + ".img"))
		if err != nil || strings.Trim(string(b), c) != "" {
			t.Errorf("the content of %s has changed: %v", n, err)
		}
	}
}

// "volume create NAME" makes the file of a configured volume and refuses where one is; a volume without a size needs one.
func TestVolumeCreateMakesOnlyWhatIsNotThere(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img, size: 2MiB}\n  - {name: bare, path: bare.img}", "v", "bare")
	d.start()
	d.notReady(0, 0x3A00)
	d.refused("size of 2MiB", "volume", "create", "v", "3MiB")
	d.refused("with path", "volume", "create", "v", "--path", d.path("other.img"))
	d.refused("needs a size", "volume", "create", "bare")
	if out := d.must("volume", "create", "v", "--dry-run"); d.volumes()["v"].Problem == "" {
		t.Errorf("a dry run made it: %s", out)
	}
	d.must("volume", "create", "v")
	if c := d.capacity(0); c != 2<<20 || d.size(d.path("v.img")) != c {
		t.Errorf("made with %d bytes", c)
	}
	d.refused("already", "volume", "create", "v")
	d.refused("already", "volume", "create", "v", "2MiB")
	// It is there, and has not been found yet.
	d.file("bare.img", 4096, 'b')
	d.refused("is there already", "volume", "create", "bare", "1MiB")
	if b, err := os.ReadFile(d.path("bare.img")); err != nil || string(b) != strings.Repeat("b", 4096) {
		t.Errorf("the file was touched: %v", err)
	}
	d.must("reload")
	if c := d.capacity(1); c != 4096 {
		t.Errorf("found with %d bytes", c)
	}
	d.stop()
	d.start()
	if a, b := d.capacity(0), d.capacity(1); a != 2<<20 || b != 4096 {
		t.Errorf("after a restart %d and %d bytes", a, b)
	}
}

// The embedded default makes its file at its first start, and never again.
func TestTheEmbeddedDefaultMakesItsFileOnce(t *testing.T) {
	d := prepare(t, "  []")
	start := func() {
		t.Helper()
		c := exec.Command(filepath.Join(bin, "sluiced"), "--state-dir", d.state)
		c.Stdout, c.Stderr = &d.log, &d.log
		// Its addresses are fixed, so it has a network of its own.
		c = exec.Command(need.Tool(t, "unshare", "util-linux"), append([]string{"--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`}, c.Args...)...)
		c.Stdout, c.Stderr = &d.log, &d.log
		d.cmd, d.ended = c, make(chan struct{})
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			d.err = c.Wait()
			close(d.ended)
		}()
		for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) { // polls another process's socket
			if _, code := d.sluice("volume", "list"); code == 0 {
				return
			}
			if time.Since(begin) > patience {
				t.Fatalf("no answer\n%s", d.log.String())
			}
		}
	}
	need.Root(t)
	start()
	img := filepath.Join(d.state, "default.img")
	if n := d.size(img); n != 1<<30 {
		t.Errorf("made with %d bytes", n)
	}
	d.stop()
	if err := os.Remove(img); err != nil {
		t.Fatal(err)
	}
	start()
	if p := d.volumes()["default"].Problem; !strings.Contains(p, "missing") {
		t.Errorf("the problem is %q", p)
	}
	if _, err := os.Stat(img); err == nil {
		t.Error("the file was made again")
	}
	d.must("volume", "create", "default")
	if n := d.size(img); n != 1<<30 || d.volumes()["default"].Problem != "" {
		t.Errorf("by hand: %d bytes", n)
	}
	d.stop()
}

// One volume that cannot be opened leaves its LUN not ready, with what is wrong in the list, and the others served.
func TestABadVolumeDoesNotStopTheOthers(t *testing.T) {
	d := prepare(t, "  - {name: dir, path: dir.img}\n  - {name: empty, path: empty.img}\n  - {name: id, path: id.img}\n  - {name: good, path: good.img}", "dir", "empty", "id", "good")
	if err := os.Mkdir(d.path("dir.img"), 0o700); err != nil {
		t.Fatal(err)
	}
	d.file("empty.img", 0, 0)
	d.sparse("id.img", 1<<20)
	d.sparse("good.img", 1<<20)
	if err := os.WriteFile(d.path("id.img.identity"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	for lun, n := range []string{"dir", "empty", "id"} {
		d.notReady(lun, 0x0403)
		if d.volumes()[n].Problem == "" {
			t.Errorf("%s is listed without its problem", n)
		}
	}
	if c := d.capacity(3); c != 1<<20 {
		t.Errorf("the good one has %d bytes", c)
	}
	if err := os.Remove(d.path("id.img.identity")); err != nil {
		t.Fatal(err)
	}
	d.must("reload")
	if c := d.capacity(2); c != 1<<20 {
		t.Errorf("the mended one has %d bytes", c)
	}
}

// State of a unit that cannot be read keeps that volume from being served, and no other.
func TestUnreadableStateIsOneVolumesProblem(t *testing.T) {
	d := prepare(t, "  - {name: a, path: a.img}\n  - {name: b, path: b.img}", "a", "b")
	d.sparse("a.img", 1<<20)
	d.sparse("b.img", 1<<20)
	d.start()
	v, end := d.open(0)
	reserve(t, v)
	end()
	d.stop()
	key, err := os.ReadFile(d.path("a.img.identity"))
	if err != nil {
		t.Fatal(err)
	}
	states, err := filepath.Glob(filepath.Join(d.state, "scsi", "lu-*"))
	if err != nil {
		t.Fatal(err)
	}
	broken := 0
	for _, s := range states {
		if strings.Contains(string(key), strings.TrimSuffix(strings.TrimPrefix(filepath.Base(s), "lu-"), ".json")) {
			broken++
			if err := os.WriteFile(s, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if broken != 1 {
		t.Fatalf("%d state files of %v", broken, states)
	}
	d.start()
	d.notReady(0, 0x0403)
	if c := d.capacity(1); c != 1<<20 {
		t.Errorf("the other has %d bytes", c)
	}
	if p := d.volumes()["a"].Problem; !strings.Contains(p, "state file") {
		t.Errorf("the problem is %q", p)
	}
}

// A configuration that holds nothing any more, after an edit on a full disk, takes nothing away.
func TestAFileThatHoldsNothingTakesNothingAway(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	url := d.url(0)
	for _, text := range []string{"", "\n", "# nothing\n", "---\n"} {
		if err := os.WriteFile(d.conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d.refused("not changed", "reload")
	}
	if out, err := tool(t, "iscsi-inq", url); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The doctor names each configured volume and target that is not served, with the reason and what to do, and its exit code tells.
func TestTheDoctorNamesWhatIsNotServed(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}\n  - {name: away, path: away.img}\n  - {name: dir, path: fs}", "v", "away", "dir")
	d.sparse("v.img", 1<<20)
	if err := os.Mkdir(d.path("fs"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, _ := d.sluice("doctor", "--state-dir", d.state)
	if !strings.Contains(out, "no daemon listens") {
		t.Errorf("without a daemon the doctor says\n%s", out)
	}
	d.start()
	out, code := d.sluice("doctor", "--state-dir", d.state)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	for _, want := range []string{"volume away", "is missing", "sluice volume create away", "volume dir", "neither a file nor a block device", "sluice reload"} {
		if !strings.Contains(out, want) {
			t.Errorf("the doctor does not say %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "volume v ") {
		t.Errorf("what is served is named:\n%s", out)
	}
}
