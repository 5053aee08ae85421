package iscsi

import (
	"github.com/sluice-storage/sluice/internal/iscsi"
)

// datamover is what differs between TCP and iSER below one session core (RFC 7145 section 3.1). Methods named ...Locked
// want conn.mu. None of them calls into target/scsi.
type datamover interface {
	// sendLocked queues a PDU. The header is copied; data is copied when short and must not change otherwise.
	sendLocked(h iscsi.BHS, data []byte)
	// respondLocked queues a task's SCSI Response.
	respondLocked(t *task)
	// dataInLocked queues Data-In of t.in; the datamover reports the end by t.moved.
	dataInLocked(t *task)
	// solicitLocked asks for what t.out still lacks; the datamover calls conn.placed or t.moved as it comes.
	solicitLocked(t *task)
	// cancelLocked reports whether the move of t can end now; otherwise the datamover ends it soon.
	cancelLocked(t *task) bool
	// flushLocked starts transmitting what is queued. It may drop conn.mu and take it again.
	flushLocked()
	// widen makes all memory known to the connection, before fullFeatureLocked. That takes long: conn.mu is not held.
	widen() error
	// fullFeatureLocked makes it ready for full-feature phase, before the final login response is queued.
	fullFeatureLocked() error
	// windowLocked prepares for n commands in progress and returns how many it can take.
	windowLocked(n int) int
	// idleLocked gives back memory that an idle connection does not need.
	idleLocked()
	// closeAfterFlushLocked ends the connection once everything queued has left.
	closeAfterFlushLocked()
	// close ends the connection; the owner notices. Any goroutine, any number of times.
	close(err error)
	// maxSend is the longest data segment that the peer takes now.
	maxSend() int
}
