package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A path is lost whose group has another portal, and one of another group is up as well: its commands are ended by a login at its
// group, which also ends those that have not arrived at the target, and not by a reset, which on most targets does not.
func TestALostPathIsFencedByALoginWhereItsGroupHasAnotherPortal(t *testing.T) {
	s, g := gated(t)
	other, lost, twin := newRelay(t, s.Portal("127.0.0.1", 1)), newRelay(t, s.Portal("127.0.0.1", 2)), newRelay(t, s.Portal("127.0.0.1", 2))
	v := open(t, host(t, block.Options{}, iwarp.Options{}), url("iser", other.addr()), url("iser", lost.addr()), url("iser", twin.addr()))
	var all []chan error
	arrive := func() bool { // commands take turns on the paths
		g.set(true)
		for k := range 6 {
			_, done := submit(t, v, blockdev.Write, int64(k)*4096, pattern(4096, 1), nil)
			all = append(all, done)
		}
		for range 6 {
			select {
			case <-g.came:
			case <-time.After(2 * time.Second):
				return false
			}
		}
		return true
	}
	end := func() {
		g.set(false)
		for _, done := range all {
			must(t, wait(t, done))
		}
		all = nil
	}
	for tries := 0; !arrive(); tries++ {
		// A look at the unit after the logins, or after a report, waits for the writes that are held, and others wait for it.
		if tries == 10 {
			t.Fatal("the writes do not arrive")
		}
		end()
		for len(g.came) > 0 {
			<-g.came
		}
	}
	lost.cut(true)
	end()
	fenced := ""
	for _, e := range v.Events() {
		if strings.Contains(e.Text, "fenced") {
			fenced += e.Text + "\n"
		}
	}
	if !strings.Contains(fenced, "by a login") || strings.Contains(fenced, "by a reset") {
		t.Fatalf("the lost path is fenced so: %q", fenced)
	}
}
