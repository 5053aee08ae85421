package iwarp

import (
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// nudge makes a responder look at its socket again.
//
// As responder, Linux siw (6.1, siw_accept) sends its MPA Reply first and hooks its receiver to the socket afterwards.
// An FPDU that arrives in between, which a fast initiator and a busy responder make likely, lies there until the next
// segment comes; a login waits for its answer and sends none. So while nothing has come back, the initiator sends
// what every peer takes and no upper protocol sees: a zero-length RDMA Write (RFC 5040 section 5.1 allows one).
func (q *QP) nudge() {
	if q.opt.Nudge <= 0 {
		return
	}
	tries := nudgeTries
	var again func()
	wait := q.opt.Nudge
	again = func() {
		if q.life.dead() || q.cnt.bytesIn.Load() > 0 {
			return
		}
		if q.cnt.fpdusOut.Load() > 0 {
			q.nudgeOnce()
			tries--
		}
		if wait *= 2; tries > 0 && wait < nudgeEnd {
			time.AfterFunc(wait, again)
		}
	}
	time.AfterFunc(wait, again)
}

// nudgeOnce posts the Write, unless one waits already.
func (q *QP) nudgeOnce() {
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	if !q.life.up() || t.own > 0 {
		return
	}
	t.ownLocked(transport.OpWrite)
	t.pumpLocked(q.opt.NoInline)
}
