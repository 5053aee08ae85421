package volumes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/forbid"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// Where io_uring is forbidden volumes are served all the same, and list, doctor and metrics say that something is missing, and why; where
// it is not, they say that it is used.
func TestWhereIOUringIsForbidden(t *testing.T) {
	need.IOUring(t)
	for name, c := range map[string]struct {
		wrap []string
		why  string
	}{
		"allowed":     {},
		"by EPERM":    {forbid.Wrap(unix.EPERM, forbid.IOUring...), "it is forbidden"},
		"by ENOSYS":   {forbid.Wrap(unix.ENOSYS, forbid.IOUring...), "the kernel has none"},
		"half of it":  {forbid.Wrap(unix.EPERM, unix.SYS_IO_URING_REGISTER), "operation not permitted"},
		"but to open": {forbid.Wrap(unix.EPERM, unix.SYS_IO_URING_ENTER), ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := prepare(t, "", "past", "through")
			d.configure(fmt.Sprintf("  - {name: past, path: %q, direct: true}\n  - {name: through, path: %q}", d.sparse("past.img", 1<<20), d.sparse("through.img", 1<<20)), "past", "through")
			d.start(c.wrap...)
			what := strings.Repeat("Sluice. ", 4096)
			for lun := range 2 {
				for range 2 {
					pipe(t, what, "write", d.url(lun), "--offset", "8192")
					if got := pipe(t, "", "read", d.url(lun), "--offset", "8192", "--length", fmt.Sprint(len(what))); got != what {
						t.Errorf("LUN %d: %d other bytes", lun, len(got))
					}
				}
			}
			if name == "but to open" {
				c.why = "io_uring is not to be had any more: io_uring_enter: operation not permitted"
			}
			metrics, doctor := d.metrics(), ""
			for vol, v := range d.volumes() {
				// Nothing has missed the page cache yet.
				bad := c.why != "" && (vol == "past" || name != "but to open")
				if bad != strings.Contains(v.How, "the rest by worker (") || bad && !strings.Contains(v.How, c.why) || bad != (v.Slow != "") || !bad && !strings.Contains(v.How, "by io_uring") {
					t.Errorf("%s: %q, %q; want %q", vol, v.How, v.Slow, c.why)
				}
				want := map[bool]int{false: 1, true: 0}[bad]
				if line := fmt.Sprintf("sluice_volume_io_uring{volume=%q} %d\n", vol, want); !strings.Contains(metrics, line) {
					t.Errorf("the metrics have no %s", line)
				}
				if bad {
					doctor = "volume " + vol
				}
			}
			out, _ := d.sluice("doctor") // what else it finds on this machine is not the question
			if doctor != "" && (!strings.Contains(out, doctor) || !strings.Contains(out, "allow io_uring to the daemon")) || doctor == "" && strings.Contains(out, "allow io_uring") {
				t.Errorf("doctor says of %q:\n%s", doctor, out)
			}
			d.stop()
		})
	}
}

// pipe runs sluice with an input, and returns what it wrote.
func pipe(t *testing.T, in string, args ...string) string {
	t.Helper()
	c := exec.Command(filepath.Join(bin, "sluice"), args...)
	var said strings.Builder
	c.Stdin, c.Stderr = strings.NewReader(in), &said
	out, err := c.Output()
	if err != nil {
		t.Fatalf("sluice %s: %v\n%s", strings.Join(args, " "), err, said.String())
	}
	return string(out)
}

// metrics is what Prometheus would read.
func (d *daemon) metrics() string {
	d.t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var n net.Dialer
		return n.DialContext(ctx, "unix", filepath.Join(d.state, "admin.sock"))
	}}}
	r, err := c.Get("http://sluiced/metrics")
	if err != nil {
		d.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return string(b)
}
