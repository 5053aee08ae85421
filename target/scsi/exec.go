package scsi

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Command is one task. The session embeds it in its own task object and uses it again and again: its buffers and
// callbacks are made once. The session sets the request, the device server the outcome.
type Command struct {
	LUN  uint64 // the eight bytes of the LUN field, big endian (SAM-5 section 4.7)
	CDB  []byte // valid until Complete; at most MaxCDB bytes
	Attr Attr
	Tag  uint64 // initiator task tag: what ABORT TASK and QUERY TASK refer to
	// ExpectIn and ExpectOut are the expected data transfer lengths in bytes, for the read and for the write part.
	ExpectIn, ExpectOut int64
	// Heard is the number of the first response that the initiator had not received when it sent the command (iSCSI:
	// ExpStatSN). It has a meaning where the nexus has NextResponse.
	Heard uint32
	Nexus *Nexus
	Mover Mover
	// Behind tells the mover that the nexus's Flusher is flushed behind this call: what it queues may wait for that, and leaves with what
	// other commands have queued by then. It has a meaning while the mover is being called.
	Behind bool
	Outcome

	x exec
}

// exec is a command's execution: a step function that one goroutine at a time advances, the runner. Events (a device
// request that ended, a move that ended, memory that came free, an abort) are recorded under x.mu. A goroutine that
// records one for a command that waits becomes its runner; a runner that is there goes round once more. The runner alone
// finishes the command, when nothing is outstanding, so no event reaches a command that is used again.
type exec struct {
	mu      sync.Mutex
	run     runState
	abort   abortState
	move    moveState
	moveErr error // of a move that has ended
	memory  memoryState

	began   time.Duration // when the session handed it over, on hist.Clock
	kind    opKind
	step    func(*Command) stepResult
	row     *row
	itl     *itl
	lu      *LogicalUnit
	err     error  // the first failure
	asks    bool   // an INQUIRY by which the initiator learns what a LUN has become
	reports ASC    // the unit attention that the response tells of
	fence   uint32 // the reset for which it was refused; see fence.go
	owed    bool   // a flush that has to fail for an earlier loss

	// Task set membership, guarded by the set's lock.
	set        *taskSet
	prev, next *Command
	state      taskState
	attr       Attr
	waiters    []*tmfWait
	visit      atomic.Pointer[visit] // an EXTENDED COPY at work on other units

	memNext *Command // nexus memory queue, guarded by its lock

	bound bool
	wake  chan struct{}
	tr    transfer
	param []byte // parameter data to send; the backing array is kept
	sense [senseLen]byte
}

type stepResult uint8

const (
	stepWait   stepResult = iota // an event will continue it
	stepDone                     // the outcome is in x.err
	stepHanded                   // a goroutine of its own goes on
)

// bind makes the callbacks, once in the life of a Command.
func (c *Command) bind() {
	if c.x.bound {
		return
	}
	c.x.bound = true
	c.x.wake = make(chan struct{}, 1)
	for i := range c.x.tr.piece {
		p := &c.x.tr.piece[i]
		p.req.Done = func(*blockdev.Request) { c.deviceDone(p) }
	}
}

// Reset makes the command ready for the next request. Only the session calls it, after Complete.
func (c *Command) Reset() {
	c.LUN, c.CDB, c.Attr, c.Tag, c.ExpectIn, c.ExpectOut, c.Heard, c.Behind = 0, nil, Untagged, 0, 0, 0, 0, false
	c.Nexus, c.Mover, c.Outcome = nil, nil, Outcome{}
	c.resetExec()
}

func (c *Command) resetExec() {
	x := &c.x
	x.mu.Lock()
	if x.abort != abortNone {
		commandAbort.Move(&x.abort, abortNone)
	}
	if x.memory != memoryNone {
		commandMemory.Move(&x.memory, memoryNone)
	}
	x.mu.Unlock()
	x.step, x.row, x.itl, x.lu, x.err, x.asks, x.reports, x.fence, x.owed = nil, nil, nil, nil, nil, false, 0, 0, false
	x.waiters, x.param = nil, x.param[:0]
	x.tr.reset()
	select {
	case <-x.wake:
	default:
	}
}

// Moved ends the one outstanding DataIn or DataOut. Any goroutine may call it, also from within DataIn or DataOut.
func (c *Command) Moved(err error) {
	c.x.mu.Lock()
	commandMove.Must(&c.x.move, moveEnded) // or memory that is in use again has been moved
	c.x.moveErr = err
	c.kickAndUnlock(false)
}

func (c *Command) deviceDone(p *piece) {
	c.x.mu.Lock()
	ioLife.Must(&p.io, ioEnded) // or a later request would count as ended, and what is in its memory as read
	c.kickAndUnlock(p.req.After != nil)
}

// kickAndUnlock continues the command after an event; x.mu is held on entry and free on return. behind says that the nexus's Flusher is
// flushed soon.
func (c *Command) kickAndUnlock(behind bool) {
	if c.noteLocked() {
		c.x.mu.Unlock()
		c.run(behind)
		return
	}
	c.x.mu.Unlock()
}

// noteLocked reports whether the caller has become the runner.
func (c *Command) noteLocked() bool {
	switch c.x.run {
	case runSlow:
		select {
		case c.x.wake <- struct{}{}:
		default:
		}
		return false
	case runWait:
		commandRun.Move(&c.x.run, runStep)
		return true
	case runStep, runNone: // of a command that is over there is nothing to note, and it may be another one soon
		commandRun.Must(&c.x.run, runAgain)
	}
	return false
}

// run advances the command until it waits or ends. The caller is the runner. behind becomes Behind: it is said anew each time, because a
// command that waits for memory, say, is continued by a goroutine behind which nothing is flushed.
func (c *Command) run(behind bool) {
	c.Behind = behind
	for {
		switch c.x.step(c) {
		case stepDone:
			c.finish()
			return
		case stepHanded:
			return
		}
		c.x.mu.Lock()
		if c.x.run == runStep {
			commandRun.Move(&c.x.run, runWait)
			c.x.mu.Unlock()
			return
		}
		commandRun.Move(&c.x.run, runStep)
		c.x.mu.Unlock()
	}
}

// stopping reports whether nothing new may be started, and asks the mover to end a move of an aborted command.
func (c *Command) stopping() bool {
	c.x.mu.Lock()
	aborted, cancel := c.x.abort != abortNone, false
	if aborted {
		if c.x.err == nil {
			c.x.err = errAborted
		}
		if cancel = c.x.move == moveUnderWay; cancel {
			commandMove.Move(&c.x.move, moveCancelled)
		}
	}
	c.x.mu.Unlock()
	if cancel {
		if m, ok := c.Mover.(Canceler); ok {
			m.Cancel(c)
		}
	}
	return c.x.err != nil
}

// startMove announces the one outstanding move.
func (c *Command) startMove() {
	c.x.mu.Lock()
	commandMove.Move(&c.x.move, moveUnderWay)
	c.x.mu.Unlock()
}

// takeMoved reports whether the move has ended, once.
func (c *Command) takeMoved() (bool, error) {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	return c.takeMovedLocked()
}

func (c *Command) takeMovedLocked() (bool, error) {
	if c.x.move != moveEnded {
		return false, nil
	}
	commandMove.Move(&c.x.move, moveNone)
	err := c.x.moveErr
	c.x.moveErr = nil
	return true, moveError(err)
}

func moveError(err error) error {
	if err == nil {
		return nil // before anything escapes: this is on the data path
	}
	var s *SenseError
	if errors.As(err, &s) {
		return err
	}
	return &SenseError{Key: AbortedCommand, ASC: ASCDataPhaseError, Cause: err}
}

// outcome turns x.err into status and sense.
func (c *Command) outcome(err error) {
	c.Status, c.Sense = StatusGood, nil
	if err == nil {
		return
	}
	var st statusError
	if errors.As(err, &st) {
		c.Status = Status(st)
		return
	}
	var s *SenseError
	if !errors.As(err, &s) {
		s = &SenseError{Key: HardwareError, ASC: ASCInternalTargetFailure, Cause: err}
	}
	c.Status = StatusCheckCondition
	c.Sense = s.append(c.x.sense[:0], c.x.lu != nil && c.x.lu.descriptorSense())
}

// getMem takes buffers of n bytes together, or arranges that the command is kicked when some are free. It never blocks.
func (c *Command) getMem(n int, into []*mem.Buf) ([]*mem.Buf, bool) {
	got, err := c.Nexus.opt.Memory.GetAll(n, into)
	switch {
	case err == nil:
		return got, true
	case errors.Is(err, mem.ErrNoMemory):
		c.Nexus.waitMem(c)
	default:
		c.fail(&SenseError{Key: IllegalRequest, ASC: ASCInsufficientResources, Cause: err})
	}
	return into, false
}

func release(bufs []*mem.Buf) []*mem.Buf {
	for i, b := range bufs {
		b.Release()
		bufs[i] = nil
	}
	return bufs[:0]
}
