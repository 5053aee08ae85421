package volumes

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// A socket of the service manager serves its portal whenever one is configured: after a reload that failed, and after one that
// had no such portal (sd_listen_fds(3)).
func TestAnInheritedSocketServesItsPortalWheneverItIsConfigured(t *testing.T) {
	listen := func() (*net.TCPListener, string) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.(*net.TCPListener), fmt.Sprintf("{address: %q}", l.Addr().String())
	}
	l, ours := listen()
	_, taken := listen()
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	other := `{address: "127.0.0.1:0"}`
	v := "  - {name: v, path: v.img}\n"
	d := prepare(t, v, "v")
	d.sparse("v.img", 1<<20)
	d.given = []*os.File{f}
	d.start("sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"`, "sh")
	for _, step := range []struct {
		portals, fails string
		n              int
	}{
		{ours + ", " + taken, "address already in use", 1},
		{ours, "", 1}, {other, "", 1},
		{ours + ", " + other, "", 2},
	} {
		d.at = step.portals
		if d.configure(v, "v"); step.fails != "" {
			d.refused(step.fails, "reload")
			continue
		}
		d.must("reload")
		found := 0
		for _, p := range d.portals() {
			if fmt.Sprintf("{address: %q}", p.Address) == ours {
				found++
			}
		}
		if want := map[bool]int{true: 0, false: 1}[step.portals == other]; found != want || len(d.portals()) != step.n {
			t.Errorf("with %s the portals are %+v", step.portals, d.portals())
		}
	}
	d.healthy()
}
