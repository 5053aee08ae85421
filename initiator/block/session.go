package block

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// datamover is a connection in full-feature phase: iSER or TCP. All methods but run are called with the session's lock and
// do not block.
type datamover interface {
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
	log    *slog.Logger
	dm     datamover
	params iscsi.Params
	tpgt   string
	isid   iscsi.ISID
	path   *path  // whose it is, nil for one that serves no volume; set before the first command
	usable bool   // asymmetric access state allows I/O; the volume's lock
	rank   int    // 0 active/optimized, 1 active/non-optimized; the volume's lock
	group  uint16 // target port group; the volume's lock
	// witness: it has been up for as long as any unflushed write is old, so that what it says of the target's power is of
	// all of them; set before it is in use
	witness  bool
	resetC   chan iscsi.TaskStatus
	resetSeq uint32        // counts resets, for their tags
	resets   sync.Mutex    // held from a LOGICAL UNIT RESET to its answer, around mu
	ended    chan struct{} // closed when nothing of the session runs any more

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
	asks     reqList // requests of this session's own, which go before all others and through the gate
	userAsks reqList // INQUIRY and REPORT LUNS of the user, for the next look
	done     reqList
	corked   bool
	paused   bool
	use      useState
	doubts   int           // counts what put that in doubt
	settled  int           // those that its login's look settled
	out      int           // tasks under way
	drained  chan struct{} // closed when none is, if there is such a channel
	epoch    uint32        // losses of power that are known
	sent     uint64        // commands
	beat     int           // of the watchdog
	starved  int           // beats with a queue and without a command
	watchdog *time.Timer
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
	s.watchdog = time.AfterFunc(s.ini.beat(), s.watch)
}

// start runs the owner loop; lost gets the requests without an outcome, after the last of them is safe from the peer.
func (s *session) start(lost func(s *session, reqs reqList, err error)) {
	go func() {
		err := s.dm.run(s)
		reqs, err := s.end(err)
		s.dm.release()
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
	s.watchdog.Stop()
	if s.resume != nil {
		s.resume.Stop()
	}
	// What was answered has an outcome, although its window was still to be closed: the connection's end closed it.
	for i := range s.tasks {
		if t := &s.tasks[i]; t.life == taskAnswered {
			s.finishLocked(t)
		}
	}
	var reqs reqList
	for i := range s.tasks {
		t := &s.tasks[i]
		if t.life == taskFree {
			continue
		}
		taskLives.Move(&t.life, taskFree)
		r := t.req
		if r.inflight--; r.inflight == 0 {
			if r.life == queued {
				s.unqueueLocked(r)
			}
			r.to(routed)
			reqs.insert(r)
		}
	}
	for _, l := range []*reqList{&s.asks, &s.userAsks, &s.queue} {
		for r := l.pop(); r != nil; r = l.pop() {
			r.to(routed)
			reqs.insert(r)
		}
	}
	done := s.done.take()
	s.mu.Unlock()
	done.complete()
	return reqs, err
}

// failLocked ends the session for a reason of its own.
func (s *session) failLocked(err error) {
	if s.dead {
		return
	}
	s.dead = true
	s.err = &SessionError{Portal: s.portal, Err: err}
	s.dm.close(err)
}

// kill is fail without the lock.
func (s *session) kill(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

// tick runs every keepalive interval.
func (s *session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return
	}
	if s.heard != s.lastTick {
		s.lastTick, s.silent = s.heard, 0
	} else {
		s.silent++
	}
	switch {
	case s.silent >= 3:
		s.failLocked(fmt.Errorf("the target has been silent for %v", time.Duration(s.silent)*s.ini.o.Keepalive))
		return
	case s.silent >= 1 && !s.pinging:
		s.pinging = true
		nop := iscsi.NopOut{Immediate: true, LUN: s.lun, ITT: ctlPing, TTT: iscsi.Reserved, CmdSN: s.cmdSN, ExpStatSN: s.statSN}
		if err := s.sendControlLocked(&nop, nil); err != nil {
			s.failLocked(err)
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
	if err := s.err; s.dead {
		s.mu.Unlock()
		return err
	}
	c := make(chan iscsi.TaskStatus, 1)
	s.resetC = c
	s.resetSeq = (s.resetSeq + 1) & 0xffff // a late answer to an earlier one is none to this
	req := iscsi.TaskRequest{Immediate: true, Function: iscsi.LogicalUnitReset, LUN: s.lun, ITT: ctlReset | s.resetSeq, RefTag: iscsi.Reserved, CmdSN: s.cmdSN,
		ExpStatSN: s.statSN}
	err := s.sendControlLocked(&req, nil)
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

func (s *session) resetDoneLocked(itt uint32, r iscsi.TaskStatus) {
	if s.resetC != nil && itt == ctlReset|s.resetSeq {
		s.resetC <- r
		s.resetC = nil
	}
}

// leave logs out and ends the session; the answer is waited for a moment only.
func (s *session) leave() {
	s.mu.Lock()
	err := s.err
	if !s.dead {
		err = s.sendLogoutLocked()
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
	select {
	case <-s.logout:
		s.kill(blockdev.ErrClosed)
	default:
		s.kill(errUnheard)
	}
	<-s.ended
}

var errUnheard = fmt.Errorf("%w, and the target has not answered the logout", blockdev.ErrClosed)

// cut reports whether a connection that ends with err may hold commands that must not arrive late.
func cut(err error) bool {
	return err != nil && (!errors.Is(err, blockdev.ErrClosed) || errors.Is(err, errUnheard)) && !errors.Is(err, errLogoutAsked)
}
