package iscsi

import (
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/scsi"
)

// task is one SCSI command in progress. It is its own Mover. conn.mu guards its fields where they do not say otherwise.
//
// The owner alone makes tasks. So the owner may look at one after Execute, and see by gen whether it is still the same.
type task struct {
	scsi.Command
	c    *conn
	slot uint32
	gen  uint16 // counts uses, part of the target transfer tag

	itt       uint32
	lun       uint64
	immediate bool // delivered at once (RFC 7143 section 4.2.2.1): the window does not count it
	state     taskState
	cdb       [scsi.MaxCDB]byte
	began     time.Duration // on hist.Clock
	held      []*heldAnswer // task management answers that must not overtake this task's response

	move  moveState
	stall taskStall
	in    dataIn
	out   dataOut
	iser  iserTask
}

// dataIn is the Data-In move in progress.
type dataIn struct {
	off    int
	data   []mem.Span
	dataSN uint32
	burst  int // bytes since the last F
}

// dataOut is the Data-Out side of a task. Data comes in order (DataPDUInOrder and DataSequenceInOrder are Yes).
type dataOut struct {
	edtl  int
	unsol int    // the first bytes come unsolicited
	got   int    // received so far, contiguous from 0
	imm   []byte // immediate data in the receive buffer, owner's, valid during Execute; bytes [0, len)
	// stash holds bytes [stashOff, stashOff+len) that came before they were wanted.
	stash    []byte
	stashOff int

	// The request of the device server: n bytes from off.
	off, n int
	data   []mem.Span
	have   int // bytes of the request in place from its start

	sequence  sequenceState
	unsolSN   uint32 // the next DataSN of unsolicited Data-Out
	unsolSeen int    // its end so far
	r2tSN     uint32
	r2tBulk   bool // the R2T is counted in conn.bulkOut
	r2tEnd    int
	r2tPos    int
	dataSN    uint32 // next within the R2T's sequence
	err       error
}

// endSequenceLocked notes that the sequence is over, if one is open, or that what is left of it is not wanted.
func (c *conn) endSequenceLocked(t *task) {
	if t.out.sequence != sequenceNone {
		taskSequence.Move(&t.out.sequence, sequenceNone)
	}
	if t.out.r2tBulk {
		t.out.r2tBulk = false
		c.bulkOut.Add(-1)
	}
}

// ttt is the target transfer tag of this use of the task's slot.
func (t *task) ttt() uint32 { return uint32(t.gen)<<16 | t.slot }

// takeTaskLocked returns a task from the free list or a new one.
func (c *conn) takeTaskLocked() *task {
	var t *task
	if n := len(c.free); n > 0 {
		t, c.free = c.free[n-1], c.free[:n-1]
	} else {
		t = &task{c: c, slot: uint32(len(c.tasks))}
		c.tasks, c.itts = append(c.tasks, t), append(c.itts, 0)
	}
	taskLife.Move(&t.state, taskRunning)
	c.live++
	t.began = hist.Clock()
	t.gen = t.gen%0x7fff + 1
	t.immediate = false
	t.in, t.out = dataIn{}, dataOut{}
	return t
}

// endTaskLocked puts a task back; nothing of it is outstanding.
func (c *conn) endTaskLocked(t *task) {
	c.retireLocked(t)
	if t.move != moveNone {
		taskMove.Move(&t.move, moveNone)
	}
	c.endSequenceLocked(t)
	if t.out.stash != nil {
		c.stash -= cap(t.out.stash)
	}
	t.in, t.out, t.iser = dataIn{}, dataOut{}, iserTask{}
	taskLife.Move(&t.state, taskFree)
	c.letGoLocked(t)
	t.Reset()
	c.free = append(c.free, t)
	if c.live--; c.live == 0 && c.drained != nil {
		go c.drained()
		c.drained = nil
	}
}

// heldAnswer is a Task Management Function Response that waits for the responses of the tasks it is about (RFC 7143
// section 11.6.1: responses of tasks that ended before come before). A task leaves its task set before its response is
// queued, and an ABORT TASK in between would be answered first. The initiator would then meet a response to a task that
// it believes gone.
type heldAnswer struct {
	left int    // tasks without a response
	send func() // set when the device server has answered; conn.mu is held
}

// letGoLocked counts t out of what answers wait for.
func (c *conn) letGoLocked(t *task) {
	for i, h := range t.held {
		if h.left--; h.left == 0 && h.send != nil {
			h.send()
		}
		t.held[i] = nil
	}
	t.held = t.held[:0]
}

// taskOfITT finds the live task of an initiator task tag.
func (c *conn) taskOfITTLocked(itt uint32) *task {
	for i, v := range c.itts {
		if v != itt {
			continue
		}
		if t := c.tasks[i]; t.state == taskRunning || t.state == taskDeferred {
			return t
		}
	}
	return nil
}

// taskOfTTT finds the live task of a target transfer tag.
func (c *conn) taskOfTTTLocked(ttt uint32) *task {
	if i := int(ttt & 0xffff); i < len(c.tasks) && c.tasks[i].state != taskFree && c.tasks[i].ttt() == ttt {
		return c.tasks[i]
	}
	return nil
}

// DataIn implements scsi.Mover. Any goroutine.
func (t *task) DataIn(_ *scsi.Command, off int, data []mem.Span) {
	c := t.c
	n := int(mem.Total(data))
	c.mu.Lock()
	if c.state == stateDead || n == 0 {
		err := c.killErr
		c.mu.Unlock()
		if n == 0 {
			err = nil
		}
		t.Moved(err)
		return
	}
	taskMove.Move(&t.move, moveIn)
	t.in.off, t.in.data = off, data
	c.stats.bytesOut += uint64(n)
	c.datamover.dataInLocked(t)
	if !t.Behind {
		c.kickLocked()
	}
	c.mu.Unlock()
}

// DataOut implements scsi.Mover. Any goroutine.
func (t *task) DataOut(_ *scsi.Command, off int, data []mem.Span) {
	c := t.c
	c.mu.Lock()
	if n := int(mem.Total(data)); n == 0 || c.state == stateDead {
		err := c.killErr
		c.mu.Unlock()
		if n == 0 {
			err = nil
		}
		t.Moved(err)
		return
	}
	o := &t.out
	o.off, o.n, o.data, o.have = off, int(mem.Total(data)), data, 0
	taskMove.Move(&t.move, moveOut)
	if o.err == nil {
		t.fromArrivedLocked()
	}
	if t.moveEndsLocked() {
		err := o.err
		c.mu.Unlock()
		t.Moved(err)
		return
	}
	if o.sequence != sequenceUnsolicited || o.off+o.have >= o.unsol {
		c.datamover.solicitLocked(t)
		if !t.Behind {
			c.kickLocked()
		}
	}
	c.mu.Unlock()
}

// fromArrivedLocked fills the request from immediate data and the stash.
func (t *task) fromArrivedLocked() {
	o := &t.out
	take := func(b []byte, at int) {
		// bytes [at, at+len(b)) are here; the request wants [off+have, off+n)
		pos := o.off + o.have
		if o.have == o.n || pos < at || pos >= at+len(b) {
			return
		}
		n := min(at+len(b)-pos, o.n-o.have)
		mem.Scatter(o.data, int64(o.have), b[pos-at:pos-at+n])
		o.have += n
		t.c.stats.copied += uint64(n)
	}
	take(o.imm, 0)
	take(o.stash, o.stashOff)
}

// moveEndsLocked reports whether the Data-Out move has ended, and marks it.
func (t *task) moveEndsLocked() bool {
	o := &t.out
	switch t.move {
	case moveOut:
		if o.have < o.n && o.err == nil {
			return false
		}
	case moveCancelled:
		if o.have < o.n && o.err == nil {
			o.err = errAborted
		}
	default:
		return false
	}
	t.endMoveLocked()
	return true
}

// Cancel implements scsi.Canceler: the command was aborted and its initiator may never answer.
func (t *task) Cancel(*scsi.Command) {
	c := t.c
	c.mu.Lock()
	switch t.move {
	case moveOut:
		taskMove.Move(&t.move, moveCancelled)
	case movePlacing:
		taskMove.Move(&t.move, movePlacingCancelled)
	default:
		c.mu.Unlock()
		return
	}
	// What the initiator still owes for this task is dropped when it comes.
	c.endSequenceLocked(t)
	if !c.datamover.cancelLocked(t) || !t.moveEndsLocked() {
		c.mu.Unlock()
		return
	}
	err := t.out.err
	c.mu.Unlock()
	t.Moved(err)
}

// Complete implements scsi.Mover. The outcome is there, and nothing of the command touches medium or memory any more.
func (t *task) Complete(*scsi.Command) {
	t.c.mu.Lock()
	behind := t.Behind
	t.c.completeLocked(t)
	if !behind {
		t.c.kickLocked()
	}
	t.c.mu.Unlock()
}

func (c *conn) completeLocked(t *task) {
	if !t.Silent && t.state == taskRunning && t.out.sequence != sequenceNone && c.state != stateDead {
		taskLife.Move(&t.state, taskDeferred)
		c.letGoLocked(t) // an initiator whose task was aborted may never send the rest
		return
	}
	c.answerLocked(t)
}

// answerLocked sends the response, if one is due, and ends the task.
func (c *conn) answerLocked(t *task) {
	due := t.state != taskAnswered && !t.Silent && c.state != stateDead
	c.retireLocked(t)
	c.rec.EndLocked(&t.Command, t.Tag, t.began)
	if due {
		c.datamover.respondLocked(t)
	}
	t.Numbered(c.statSN)
	c.endTaskLocked(t)
}

// responseLocked fills the header of a task's SCSI Response but for its numbers (section 11.4).
func (t *task) responseLocked(r *iscsi.SCSIResponse) {
	*r = iscsi.SCSIResponse{Status: uint8(t.Status), ITT: t.itt}
	if t.Read() {
		r.ExpDataSN = t.in.dataSN
		res, over, under := residual(t.ExpectIn, t.TransferIn)
		if t.ExpectOut > 0 {
			r.BidiResidual, r.BidiOver, r.BidiUnder = res, over, under
		} else {
			r.Residual, r.Overflow, r.Underflow = res, over, under
		}
	}
	if t.ExpectOut > 0 || t.ExpectIn == 0 {
		r.ExpDataSN += t.out.r2tSN
		r.Residual, r.Overflow, r.Underflow = residual(t.ExpectOut, t.TransferOut)
		if t.ExpectIn == 0 && t.ExpectOut == 0 && t.TransferIn > 0 {
			r.Residual, r.Overflow, r.Underflow = residual(0, t.TransferIn)
		}
	}
	if len(t.Sense) > 0 {
		r.DataLen = 2 + len(t.Sense)
	}
}

// Read reports whether the command moves data to the initiator.
func (t *task) Read() bool { return t.ExpectIn > 0 }

// residual is the difference between what was expected and what the command would move (section 11.4.5.1).
func residual(expect, want int64) (n uint32, over, under bool) {
	switch d := want - expect; {
	case d > 0:
		return uint32(min(d, 1<<32-1)), true, false
	case d < 0:
		return uint32(-d), false, true
	}
	return 0, false, false
}

var _ scsi.Mover = (*task)(nil)
var _ scsi.Canceler = (*task)(nil)
var _ blockdev.Deferrer = (*task)(nil)
var _ blockdev.Flusher = (*conn)(nil)
