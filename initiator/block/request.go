package block

import (
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// rawCommand is the operation of a request that is a SCSI command as it stands. No caller can submit it: Raw makes it.
const rawCommand blockdev.Op = 0xff

// request is what a Volume knows of a blockdev.Request beside what the caller has put there. It stays with the caller's
// Request, in Priv, for its next submission.
type request struct {
	*blockdev.Request

	// Of a raw command: what is sent, whether Data is filled and not sent, how many bytes moved, and the SCSI status.
	cdb         []byte
	in          bool
	transferred int64
	code        uint8

	next      *request
	seq       uint64
	issued    int64 // bytes for which commands have been made
	finished  int64 // bytes whose commands have ended well
	inflight  int   // commands out
	retries   int
	lostAt    time.Time // when the first session that ran it was lost
	span      int       // index into the data list of the next piece
	spanOff   int
	sent      bool // a command has been given to a connection, whose end may leave its outcome unknown
	life      life
	step      step
	failed    error
	epoch     uint32 // losses of power that were known when its first command left
	mark      uint32 // Flush: the marks of its begin, and the losses known then
	born      uint32
	waiting   time.Time // since when the target has asked to wait
	timeouts  int
	fence     *path // not to be sent again before that path's commands are known to be over
	pin       *session
	cancelled atomic.Bool
	waiter    chan struct{} // gets the end in place of Done
}

// stateOf is what the Volume knows of a request that is submitted.
func stateOf(b *blockdev.Request) *request {
	r, ok := b.Priv.(*request)
	if !ok || r.Request != b { // its first time, or a copy of one that has been here
		r = &request{Request: b}
		b.Priv = r
	}
	return r
}

// command is a request for one SCSI command as it stands.
func command(cdb []byte, in bool, data ...mem.Span) *request {
	return &request{Request: &blockdev.Request{Op: rawCommand, Data: data}, cdb: cdb, in: in}
}

// reset makes r ready for its first command, or for all of them once more.
func (r *request) reset() {
	r.issued, r.finished, r.inflight, r.span, r.spanOff = 0, 0, 0, 0, 0
	r.failed, r.transferred, r.code = nil, 0, 0
	if r.step != stepOwn {
		steps.Move(&r.step, stepOwn)
	}
	if r.Op == blockdev.Status {
		r.Extents = r.Extents[:0]
	}
}

// begin makes r a new request.
func (r *request) begin() {
	r.to(routed)
	r.reset()
	r.lostAt, r.waiting, r.timeouts = time.Time{}, time.Time{}, 0
	r.Err, r.Miss, r.retries, r.sent, r.fence, r.pin = nil, 0, 0, false, nil, nil
	r.cancelled.Store(false)
}

// repeatable reports whether doing r twice is the same as doing it once.
func (r *request) repeatable() bool { return r.Op != blockdev.CompareWrite && r.Op != rawCommand }

// harmless reports whether a command of r that still runs at the target does no harm.
func (r *request) harmless() bool {
	return r.Op == blockdev.Read || r.Op == blockdev.Status || r.Op == blockdev.Flush
}

// asks reports whether r is a question whose answer tells the target that the initiator knows what the unit is now. Commands
// that it would otherwise refuse, because it shows another unit, would be executed behind the answer.
func (r *request) asks() bool {
	return r.Op == rawCommand && len(r.cdb) > 0 && (r.cdb[0] == opInquiry || r.cdb[0] == opReportLUNs)
}
