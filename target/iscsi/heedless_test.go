package iscsi

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// libiscsi 1.19 sends over iSER without regard to MaxCmdSN, from the first command on. Those who look at it begin with little.
func TestAnInitiatorThatDoesNotHeedTheWindowIsAnswered(t *testing.T) {
	f := newTwinFixture(t)
	p := f.dialISER(nil)
	p.loginISER()
	p.ready()
	at := onlyConn(t, f.srv)
	for range 3 {
		sent := map[uint32]bool{}
		for range heedlessWindow {
			c := p.command(make([]byte, 6))
			sent[c.ITT] = true
			p.send(c, nil, nil)
		}
		for range heedlessWindow {
			r := p.want(iscsi.OpSCSIResponse)
			if !sent[r.b.ITT()] {
				t.Fatalf("received % x", []byte(r.b))
			}
			delete(sent, r.b.ITT())
		}
		for range 2 { // quiet: the window closes as far as it does
			at.tick()
		}
	}
	q := f.dialISER(iscsi.CMPrivate(true))
	q.loginISER()
	f.srv.mu.Lock()
	defer f.srv.mu.Unlock()
	for c := range f.srv.conns {
		if c == at {
			continue
		}
		c.mu.Lock()
		if c.window != firstWindow {
			t.Errorf("an initiator that heeds the window begins with %d", c.window)
		}
		c.mu.Unlock()
	}
}
