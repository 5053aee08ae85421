package iscsi

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// RFC 7145 sections 6.7 and 8.1.2: no more events than the initiator has receives for, and none for those who take every
// PDU to be an answer.
func TestEventsOverISER(t *testing.T) {
	for _, c := range []struct {
		name    string
		private []byte
		keys    []string
		events  int // of 6
	}{
		{"libiscsi", nil, nil, 0},
		{"Linux", iscsi.CMPrivate(true), nil, undeclaredUnasked},
		{"4 declared", nil, []string{"MaxOutstandingUnexpectedPDUs=4"}, 3},
		{"no limit declared", nil, []string{"MaxOutstandingUnexpectedPDUs=0"}, 6},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newTwinFixture(t)
			p := f.dialISER(c.private)
			p.loginISER(c.keys...)
			p.ready()
			at := onlyConn(t, f.srv)
			for range 2 { // the command between acknowledges
				at.mu.Lock()
				for range 6 {
					at.asyncLocked(iscsi.Async{Event: iscsi.AsyncSCSI}, nil)
				}
				at.kickLocked()
				at.mu.Unlock()
				for range c.events {
					if r := p.want(iscsi.OpAsync); r.b.ITT() != iscsi.Reserved {
						t.Error("an event with a task tag")
					}
				}
				p.ready() // the next PDU is its answer
			}
			// The answer to a ping acknowledges too.
			at.mu.Lock()
			at.asyncLocked(iscsi.Async{Event: iscsi.AsyncSCSI}, nil)
			at.pingLocked()
			at.kickLocked()
			at.mu.Unlock()
			if c.events > 0 {
				p.want(iscsi.OpAsync)
			}
			ping := p.want(iscsi.OpNopIn)
			p.send(&iscsi.NopOut{Immediate: true, ITT: iscsi.Reserved, TTT: ping.b.TTT(), CmdSN: p.cmdSN, ExpStatSN: p.statSN}, nil, nil)
			p.ready()
			at.mu.Lock()
			if at.unasked.n != 0 {
				t.Errorf("%d events are outstanding", at.unasked.n)
			}
			at.mu.Unlock()
		})
	}
}

func onlyConn(t *testing.T, s *Server) *conn {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) != 1 {
		t.Fatalf("%d connections", len(s.conns))
	}
	for c := range s.conns {
		return c
	}
	return nil
}
