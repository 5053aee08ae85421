package block

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/mem"
)

// mover is a connection in full-feature phase: iSER or TCP. All methods but run are called with the session's lock and
// do not block.
type mover interface {
	// send starts the commands of new tasks.
	send(s *session, batch []*task) error
	// control sends a PDU without a task; data is copied.
	control(b iscsi.BHS, data []byte) error
	// maxSGE is the number of pieces of memory that a command may have.
	maxSGE() int
	// run is the owner loop. It returns when the connection has ended and nothing touches any buffer any more.
	run(s *session) error
	// release gives the connection's own memory back, after run.
	release()
	// close ends the connection; any goroutine, with or without the lock.
	close(err error)
}

// session is one login: one connection, its command window and its tasks.
type session struct {
	ini    *Initiator
	portal string
	lun    uint64
	log    *zap.Logger
	mv     mover
	params iscsi.Params
	tpgt   string
	isid   iscsi.ISID
	onUA   func(asc uint16) // unit attentions; called with the lock, must not block
	bounce func(r *Request) // takes a request that this path cannot serve in its state; called with the lock
	usable bool             // asymmetric access state allows I/O; the volume's lock
	rank   int              // 0 active/optimized, 1 active/non-optimized; the volume's lock
	group  uint16           // target port group; the volume's lock
	resetC chan iscsi.TaskStatus
	resets sync.Mutex    // held from a LOGICAL UNIT RESET to its answer, around mu
	ended  chan struct{} // closed when nothing of the session runs any more

	mu       sync.Mutex
	dead     bool // no command may start; the owner loop is ending or has ended
	err      error
	limits   limits
	cmdSN    uint32 // of the next command
	maxCmdSN uint32
	statSN   uint32 // expected
	tasks    []task
	free     []*task
	queue    reqList
	done     reqList
	corked   bool
	paused   bool
	batch    []*task
	heard    uint64 // PDUs received
	lastTick uint64
	silent   int // ticks without a PDU
	pinging  bool
	ticker   *time.Timer
	resume   *time.Timer
	aborts   int           // ABORT TASK requests without an answer
	abortSeq uint8         // counts them
	logout   chan struct{} // closed by the answer to our logout
}

// open makes a session of a connection that has just logged in.
func (s *session) open(depth int, slots []mem.Span) {
	s.ended = make(chan struct{})
	s.logout = make(chan struct{})
	s.tasks = make([]task, depth)
	s.free = make([]*task, 0, depth)
	s.batch = make([]*task, 0, depth)
	for i := depth - 1; i >= 0; i-- {
		t := &s.tasks[i]
		t.idx, t.slot = i, slots[i]
		s.free = append(s.free, t)
	}
	// Until INQUIRY and READ CAPACITY have said more, only raw commands are sent.
	s.limits = limits{block: 512, piece: 512, maxUnmap: 512, maxWriteSame: 512}
	s.ticker = time.AfterFunc(s.ini.o.Keepalive, s.tick)
}

// start runs the owner loop; lost gets the requests without an outcome, after the last of them is safe from the peer.
func (s *session) start(lost func(s *session, reqs reqList, err error)) {
	go func() {
		err := s.mv.run(s)
		reqs, err := s.end(err)
		s.mv.release()
		lost(s, reqs, err)
		close(s.ended)
	}()
}

// end collects what the session leaves behind.
func (s *session) end(err error) (reqList, error) {
	s.mu.Lock()
	s.dead = true
	if s.err == nil {
		s.err = &SessionError{Portal: s.portal, Err: err}
	}
	err = s.err
	s.ticker.Stop()
	if s.resume != nil {
		s.resume.Stop()
	}
	// What was answered has an outcome, although its window was still to be closed: the connection's end closed it.
	for i := range s.tasks {
		if t := &s.tasks[i]; t.active && t.answered {
			s.finish(t)
		}
	}
	var reqs reqList
	for i := range s.tasks {
		t := &s.tasks[i]
		if !t.active {
			continue
		}
		t.active = false
		r := t.req
		if r.inflight--; r.inflight == 0 {
			s.queue.remove(r)
			reqs.insert(r)
		}
	}
	for r := s.queue.pop(); r != nil; r = s.queue.pop() {
		reqs.insert(r)
	}
	done := s.done.take()
	s.mu.Unlock()
	done.complete()
	return reqs, err
}

// fail ends the session for a reason of its own. The lock is held.
func (s *session) fail(err error) {
	if s.dead {
		return
	}
	s.dead = true
	s.err = &SessionError{Portal: s.portal, Err: err}
	s.mv.close(err)
}

// kill is fail without the lock.
func (s *session) kill(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(err)
}

// submit takes requests, or reports that the session is over. Their commands leave in one batch.
func (s *session) submit(rs ...*Request) bool {
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return false
	}
	for _, r := range rs {
		if r.cancelled.Load() {
			r.Err = ErrCancelled
			s.done.push(r)
		} else {
			s.queue.push(r)
		}
	}
	s.pump()
	if s.corked {
		s.mu.Unlock()
		return true
	}
	done := s.done.take()
	s.mu.Unlock()
	done.complete()
	return true
}

// flush gives finished requests back without the lock; what their callbacks submit leaves in one batch. The lock is
// held on entry and return. Only the owner calls it.
func (s *session) flush() {
	for s.done.head != nil {
		done := s.done.take()
		s.corked = true
		s.mu.Unlock()
		done.complete()
		s.mu.Lock()
		s.corked = false
		s.pump()
	}
}

// pump starts as many commands as slots and the target's window allow (RFC 7143 section 4.2.2.1). The lock is held.
func (s *session) pump() {
	if s.corked || s.dead || s.paused {
		return
	}
	batch := s.batch[:0]
	for s.queue.head != nil && len(s.free) > 0 && iscsi.SNLessEq(s.cmdSN, s.maxCmdSN) {
		r := s.queue.head
		t := s.free[len(s.free)-1]
		if !t.build(r, &s.limits, s.mv.maxSGE(), s.ini.zero) {
			r.failed = fmt.Errorf("%w: its memory is in more pieces than one command can take", ErrBadRequest)
			s.queue.pop()
			if r.inflight == 0 {
				s.settle(r)
			}
			continue
		}
		s.free = s.free[:len(s.free)-1]
		t.gen = (t.gen + 1) & 0x7fff
		t.itt, t.active, t.cmdSN = t.gen<<taskIndexBits|uint32(t.idx), true, s.cmdSN
		s.cmdSN++
		r.inflight++
		r.sent = true
		if r.whole() {
			s.queue.pop()
		}
		batch = append(batch, t)
	}
	if len(batch) == 0 {
		return
	}
	if err := s.mv.send(s, batch); err != nil {
		s.fail(err)
	}
}

// lookup finds the task of a tag, nil for one that is not out.
func (s *session) lookup(itt uint32) *task {
	i := int(itt & (1<<taskIndexBits - 1))
	if i >= len(s.tasks) || !s.tasks[i].active || s.tasks[i].itt != itt {
		return nil
	}
	return &s.tasks[i]
}

// numbers takes the sequence numbers of a response (RFC 7143 section 4.2.2). stat says that it carries a status.
func (s *session) numbers(b iscsi.BHS, stat bool) {
	s.heard++
	if stat {
		s.statSN = b.StatSN() + 1
	}
	// A MaxCmdSN below ExpCmdSN-1 is ignored, an older one too (section 4.2.2.1).
	if m := b.MaxCmdSN(); !iscsi.SNLess(m, b.ExpCmdSN()-1) && iscsi.SNLess(s.maxCmdSN, m) {
		s.maxCmdSN = m
	}
}

// finish ends a task that is answered and of which the connection holds nothing more. The lock is held.
func (s *session) finish(t *task) {
	r := t.req
	t.active, t.req = false, nil
	s.free = append(s.free, t)
	r.inflight--
	if t.err != nil {
		if r.failed == nil {
			r.failed = t.err
		}
	} else {
		r.finished += t.n
	}
	over := r.failed != nil || r.cancelled.Load()
	if over && !r.whole() {
		s.queue.remove(r) // no more pieces of it
	}
	if r.inflight == 0 && (over || r.whole()) {
		s.settle(r)
	}
}

// settle decides what becomes of a request without commands out: done, or once more. The lock is held.
func (s *session) settle(r *Request) {
	switch {
	case r.cancelled.Load():
		r.Err = ErrCancelled
	case r.failed == nil && r.Op == WriteZeroes && r.FUA && !r.flushing:
		// WRITE SAME has no FUA bit; the cache is flushed instead.
		r.flushing, r.started = true, false
		s.queue.push(r)
		return
	case r.failed != nil && s.again(r):
		return
	default:
		r.Err = r.failed
	}
	s.done.push(r)
}

// again sends a request once more if its failure asks for it: a unit attention says that the command was not begun, BUSY
// and TASK SET FULL that it was not taken, TASK ABORTED and ABORTED COMMAND that somebody else's doing ended it.
func (s *session) again(r *Request) bool {
	if r.Op == Raw || r.retries >= maxRetries {
		return false
	}
	wait := false
	var se *SenseError
	var st *StatusError
	switch {
	case errors.As(r.failed, &se):
		switch {
		case se.Key == keyUnitAttention:
			s.attention(se.asc())
		case se.Key == keyNotReady && (se.asc() == 0x0401 || se.asc() == 0x040a):
			wait = true
		case se.Key == keyNotReady && (se.asc() == 0x040b || se.asc() == 0x040c) && s.bounce != nil && r.pin == nil:
			r.retries++
			r.reset()
			s.bounce(r)
			return true
		case se.Key == keyIllegalRequest && se.asc() == 0x2000 && r.Op == WriteZeroes && !s.limits.noWriteSame:
			s.limits.noWriteSame = true // then zeroes are written as data
		case se.Key == keyAborted && r.repeatable():
		default:
			return false
		}
	case errors.As(r.failed, &st):
		switch st.Status {
		case statusBusy, statusTaskSetFull:
			wait = true
		case statusTaskAborted:
			if !r.repeatable() {
				r.failed = ErrOutcomeUnknown
				return false
			}
		default:
			return false
		}
	default:
		return false
	}
	r.retries++
	r.reset()
	s.queue.pushFront(r)
	if wait && !s.paused {
		s.paused = true
		s.resume = time.AfterFunc(retryDelay, func() {
			s.mu.Lock()
			s.paused = false
			s.pump()
			done := s.done.take()
			s.mu.Unlock()
			done.complete()
		})
	}
	return true
}

func (s *session) attention(asc uint16) {
	if s.onUA != nil {
		s.onUA(asc)
	}
}

// cancel ends the commands of a request, or takes it out of the queue. r.cancelled is set.
func (s *session) cancel(r *Request) {
	s.mu.Lock()
	if s.dead {
		// What a dead session has is given back by its end, which minds the cancellation.
		s.mu.Unlock()
		return
	}
	if s.queue.remove(r) && r.inflight == 0 {
		r.Err = ErrCancelled
		s.done.push(r)
	}
	for i := range s.tasks {
		t := &s.tasks[i]
		if t.active && t.req == r && !t.answered && !t.aborting && !s.dead {
			s.abort(t)
		}
	}
	var done reqList
	if !s.corked {
		done = s.done.take()
	}
	s.mu.Unlock()
	done.complete()
}

// abort asks the target to end a task (RFC 7143 section 11.5). Its answer, not the asking, ends it here. It waits its
// turn when as many immediate PDUs are out as the target has room for (RFC 7145 section 8.1.1).
func (s *session) abort(t *task) {
	t.aborting = true
	most := maxAborts
	if n := int(s.params.PeerUnexpected); s.params.RDMA && n > 0 {
		most = max(min(most, n-1), 1) // one is left for a ping or logout
	}
	if s.aborts >= most {
		t.abortWaits = true
		return
	}
	s.aborts++
	t.abortWaits = false
	s.abortSeq++
	// The tag tells this abort from one of the slot's earlier command, whose answer may still be on its way.
	t.abortITT = ctlAbort | uint32(s.abortSeq)<<16 | uint32(t.idx)
	req := iscsi.TaskRequest{Immediate: true, Function: iscsi.AbortTask, LUN: s.lun, ITT: t.abortITT, RefTag: t.itt,
		CmdSN: s.cmdSN, ExpStatSN: s.statSN, RefCmdSN: t.cmdSN}
	if err := s.sendControl(&req, nil); err != nil {
		s.fail(fmt.Errorf("abort a command: %w", err))
	}
}

// nextAbort sends one that waited.
func (s *session) nextAbort() {
	s.aborts = max(s.aborts-1, 0)
	for i := range s.tasks {
		if t := &s.tasks[i]; t.active && t.abortWaits && !t.answered && !s.dead {
			s.abort(t)
			return
		}
	}
}

// tick runs every keepalive interval.
func (s *session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	for i := range s.tasks {
		if t := &s.tasks[i]; t.active && t.aborting && !t.abortWaits {
			if t.aborted++; time.Duration(t.aborted-1)*s.ini.o.Keepalive >= abortTimeout {
				s.fail(errors.New("the target did not answer the abort of a command"))
				return
			}
		}
	}
	if s.heard != s.lastTick {
		s.lastTick, s.silent = s.heard, 0
	} else {
		s.silent++
	}
	switch {
	case s.silent >= 3:
		s.fail(fmt.Errorf("the target has been silent for %v", time.Duration(s.silent)*s.ini.o.Keepalive))
		return
	case s.silent >= 1 && !s.pinging:
		s.pinging = true
		nop := iscsi.NopOut{Immediate: true, LUN: s.lun, ITT: ctlPing, TTT: iscsi.Reserved, CmdSN: s.cmdSN, ExpStatSN: s.statSN}
		if err := s.sendControl(&nop, nil); err != nil {
			s.fail(err)
			return
		}
	}
	s.ticker.Reset(s.ini.o.Keepalive)
}

// reset runs a LOGICAL UNIT RESET and waits for its answer: then no command of any nexus is left in the unit
// (RFC 7143 section 11.5.1).
func (s *session) reset(ctx context.Context) error {
	s.resets.Lock() // two paths may be fenced over one session at a time; each waits for an answer of its own
	defer s.resets.Unlock()
	s.mu.Lock()
	if s.dead {
		s.mu.Unlock()
		return s.err
	}
	c := make(chan iscsi.TaskStatus, 1)
	s.resetC = c
	req := iscsi.TaskRequest{Immediate: true, Function: iscsi.LogicalUnitReset, LUN: s.lun, ITT: ctlReset, RefTag: iscsi.Reserved, CmdSN: s.cmdSN,
		ExpStatSN: s.statSN}
	err := s.sendControl(&req, nil)
	s.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case r := <-c:
		if r != iscsi.TaskComplete {
			return fmt.Errorf("block: the target does not reset the logical unit: %s", r)
		}
		return nil
	case <-s.ended:
		return s.reason()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *session) resetDone(r iscsi.TaskStatus) {
	if s.resetC != nil {
		s.resetC <- r
		s.resetC = nil
	}
}

// leave logs out and ends the session; the answer is waited for a moment only.
func (s *session) leave() {
	s.mu.Lock()
	err := s.err
	if !s.dead {
		err = s.sendLogout()
	}
	s.mu.Unlock()
	if err == nil {
		t := time.NewTimer(logoutTimeout)
		select {
		case <-s.logout:
			// The target closes now; see iserConn.linger for why it goes first.
			t.Reset(lingerTimeout)
			select {
			case <-s.ended:
			case <-t.C:
			}
		case <-s.ended:
		case <-t.C:
		}
		t.Stop()
	}
	s.kill(ErrClosed)
	<-s.ended
}
