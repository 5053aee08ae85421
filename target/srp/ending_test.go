package srp

import (
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// told waits for the end of a channel and returns what its initiator was told before.
func told(c *srpinit.Channel) []srpinit.Event {
	<-c.Done()
	return c.Events()
}

// Who is logged out is told so before the connection ends.
func TestLogout(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		must(t, f.srv.CloseSession(f.srv.Sessions()[0].ID))
		if e := told(c); len(e) != 1 || e[0].Op != wire.OpTLogout || e[0].Reason != wire.LogoutNone {
			t.Errorf("told %+v", e)
		}
	})
}
