package iscsi

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

// datamover is what differs between TCP and iSER below one session core (RFC 7145 section 3.1). Methods named ...Locked want conn.mu; none of them
// calls into target/scsi.
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

type connState uint8

const (
	stateLogin  connState = iota // one request at a time, by the owner
	stateHeld                    // the final login response waits for the session that it replaces
	stateFull                    // full-feature phase
	stateEnding                  // a logout or the server ends it: no new commands
	stateDead                    // nothing is sent any more
)

// conn is one connection, and, with MaxConnections=1, the live part of a session.
type conn struct {
	srv           *Server
	portal        Portal
	local, remote net.Addr
	plog          *peerLog
	datamover     datamover
	iser          bool
	ctx           context.Context // ends with the connection
	cancel        context.CancelFunc
	began         time.Time
	loginTimer    *time.Timer
	counted       string        // its host, while it counts against limits; guarded by Server.mu
	received      atomic.Uint64 // PDUs, for the keepalive
	bulkOut       atomic.Int32  // R2Ts for much data that are not answered
	placed        atomic.Uint64 // times that data came for a move

	// The owner's.
	held    bool // it holds mu
	login   *login
	text    []byte // rest of a long text answer
	textTTT uint32
	textIn  *iscsi.Negotiator

	// Set when login ends, read-only after.
	params    iscsi.Params
	discovery bool
	initiator string
	target    *targetEntry
	sess      *session
	nexus     *scsi.Nexus
	quota     *mem.Quota

	mu       sync.Mutex
	state    connState
	killErr  error
	corked   bool
	statSN   uint32
	expCmdSN uint32
	maxCmdSN uint32

	window    int      // how many commands may be in progress now
	active    int      // non-immediate commands in progress
	immediate int      // immediate ones, task management included
	managing  []uint32 // tags of task management requests that are not answered yet
	peak      int      // most active, or taken in one batch, since the last tick
	burst     int      // taken in the batch under way
	edge      uint32   // MaxCmdSN when the batch under way was begun
	control   int      // queued PDUs that no window bounds
	unsent    int      // SCSI responses that have not left, as far as is known
	behind    int      // of them, how many may have left and complete behind a Read (transport, rule 4)
	unasked   unasked
	tasks     []*task
	itts      []uint32 // initiator task tags of tasks, side by side: each command is looked up once
	free      []*task
	live      int // tasks not free
	stash     int // bytes of unsolicited data parked
	drained   func()

	ticker   *time.Timer
	lastRx   uint64
	pinged   bool // a NOP-In of ours waits for its answer
	idleTick int
	wrote    uint64 // times that queued data left
	stall    stall
	quiet    int // ticks of a discovery session since it asked something
	nopTTT   uint32
	stats    counters
	rec      recorder
}

// counters of one session; guarded by conn.mu.
type counters struct {
	commands, bytesIn, bytesOut, copied, rejects uint64
}

var (
	errPeerClosed   = errors.New("iscsi: the initiator closed the connection")
	errLoggedOut    = errors.New("iscsi: the initiator logged out")
	errReinstated   = errors.New("iscsi: the initiator logged in again and this session made room (RFC 7143 section 6.3.5)")
	errRefused      = errors.New("iscsi: the login was refused")
	errLoginTimeout = errors.New("iscsi: the login took too long")
	errLoginFlood   = errors.New("iscsi: too many unfinished logins; the oldest makes room")
	errMadeRoom     = errors.New("iscsi: a discovery session makes room for another connection")
	errIdle         = errors.New("iscsi: a discovery session that asks nothing ends")
	errSilent       = errors.New("iscsi: the initiator does not answer; is it alive and reachable?")
	errNotReading   = errors.New("iscsi: the initiator does not read its responses")
	errDown         = errors.New("iscsi: the target is shutting down")
	errRemoved      = errors.New("iscsi: the target was removed")
	errDropped      = errors.New("iscsi: the session was dropped by the operator")
	errReset        = errors.New("iscsi: a cold reset of the target, or a reset of the I_T nexus, ends the session")
)

// kill ends the connection; the first reason counts. Any goroutine.
func (c *conn) kill(err error) {
	c.mu.Lock()
	if c.killErr == nil {
		c.killErr = err
	}
	l := c.datamover
	c.mu.Unlock()
	c.cancel()
	l.close(err)
}

// numbersLocked writes the sequence numbers of a response; stat says that it takes a StatSN (RFC 7143 section 4.2.2.2).
func (c *conn) numbersLocked(h iscsi.BHS, stat bool) {
	h.SetStatSN(c.statSN)
	if stat {
		c.statSN++
	}
	h.SetExpCmdSN(c.expCmdSN)
	h.SetMaxCmdSN(c.openLocked())
}

// nextStatSN is the number of the next response.
func (c *conn) nextStatSN() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.statSN
}

// openLocked moves MaxCmdSN as far as commands in progress leave room; it never moves back (section 4.2.2.1).
func (c *conn) openLocked() uint32 {
	if room := c.window - c.active; room > 0 && c.state == stateFull {
		if m := c.expCmdSN + uint32(room) - 1; iscsi.SNLess(c.maxCmdSN, m) {
			c.maxCmdSN = m
		}
	}
	return c.maxCmdSN
}

// takeCmdSNLocked checks the number of a request and accepts it. False means that the request is to be ignored.
func (c *conn) takeCmdSNLocked(b iscsi.BHS) (bool, error) {
	c.unasked.acknowledged(b.ExpStatSN())
	sn := b.CmdSN()
	if b.Immediate() {
		// An immediate command carries the current CmdSN and does not advance it; being strict here helps nobody.
		return true, nil
	}
	// Section 4.2.2.1: outside the window, and duplicates within it, are silently ignored.
	if !iscsi.InWindow(sn, c.expCmdSN, c.maxCmdSN) {
		return false, nil
	}
	if sn != c.expCmdSN {
		// One connection delivers in order, so what is missing was never sent.
		return false, &iscsi.ProtocolError{Clause: "4.2.2.1", Reason: iscsi.RejectProtocol, Detail: "CmdSN skips a command"}
	}
	c.expCmdSN++
	return true, nil
}

// retireLocked counts a task out of the window, once: its response is queued next, or none is due.
func (c *conn) retireLocked(t *task) {
	if t.state == taskAnswered {
		return
	}
	taskLife.Move(&t.state, taskAnswered)
	if t.immediate {
		c.immediate--
	} else {
		c.active--
	}
}

// enteredLocked counts a non-immediate command in and widens the window when the initiator uses all of it.
func (c *conn) enteredLocked() {
	c.active++
	c.burst++
	c.peak = max(c.peak, c.active, c.burst)
	// A command that is answered at once never adds up to others, so the last number that the initiator knew of when it
	// sent this batch counts as much as the commands in progress.
	if (c.active >= c.window || c.expCmdSN-1 == c.edge) && c.window < c.srv.opt.Limits.Queue {
		c.window = max(c.window, c.datamover.windowLocked(min(2*c.window, c.srv.opt.Limits.Queue)))
	}
}

// controlLocked queues a PDU outside the command window; a peer that does not read them ends its connection.
func (c *conn) controlLocked(h iscsi.BHS, data []byte) {
	if c.state == stateDead {
		return
	}
	if c.control >= maxQueuedControl {
		if c.killErr == nil {
			c.killErr = errNotReading
		}
		go c.datamover.close(errNotReading) // close may want what the caller holds
		return
	}
	c.control++
	c.datamover.sendLocked(h, data)
}

// countResponseLocked counts a SCSI response that is queued. The window bounds them as long as the initiator learns from responses how
// far it may go; one that counts commands itself and reads nothing ends its connection.
func (c *conn) countResponseLocked() {
	c.unsent++
	if c.unsent <= c.srv.opt.Limits.Queue+maxImmediate+maxQueuedControl+c.behind || c.state == stateDead {
		return
	}
	if c.killErr == nil {
		c.killErr = errNotReading
		go c.datamover.close(errNotReading)
	}
}

// kick flushes unless the owner will do it anyway.
func (c *conn) kickLocked() {
	if !c.corked {
		c.datamover.flushLocked()
	}
}

// uncork is called by the owner before it waits for input.
func (c *conn) uncork() {
	c.hold()
	c.corked = false
	c.datamover.flushLocked()
	c.letGo()
}

func (c *conn) cork() {
	c.hold()
	c.corked = true
	c.edge, c.burst = c.maxCmdSN, 0
	c.letGo()
}

// fullLocked ends the login: session, nexus and numbers are in place.
func (c *conn) fullLocked(cmdSN uint32) {
	c.state = stateFull
	c.window = c.datamover.windowLocked(c.floorLocked())
	c.expCmdSN, c.maxCmdSN = cmdSN, cmdSN-1
	if c.loginTimer != nil {
		c.loginTimer.Stop()
	}
	c.ticker = time.AfterFunc(c.tickEvery(), c.tick)
}

func (c *conn) tickEvery() time.Duration { return max(c.srv.opt.Timeouts.Peer/4, time.Millisecond) }

// tick runs four times in the peer timeout: it pings a silent initiator, ends a dead one, and lets the window of a quiet
// session close.
func (c *conn) tick() {
	c.mu.Lock()
	if c.state != stateFull && c.state != stateEnding {
		c.mu.Unlock()
		return
	}
	now := c.received.Load()
	if now != c.lastRx {
		c.lastRx, c.idleTick, c.pinged = now, 0, false
	} else {
		c.idleTick++
	}
	switch {
	case c.idleTick >= 4 && c.pinged:
		c.mu.Unlock()
		c.kill(errSilent)
		return
	case c.idleTick >= 2 && !c.pinged && !c.discovery && c.state == stateFull:
		c.pinged = true
		c.rec.note("silent for %v: asked whether it is there", 2*c.tickEvery())
		c.pingLocked()
		c.kickLocked()
	}
	if x, is := c.datamover.(*iserDatamover); is && x.lateLocked() {
		c.mu.Unlock()
		c.kill(errNoMemory)
		return
	}
	if c.starvesLocked() {
		c.rec.note("no data has moved for %v", starveTicks*c.tickEvery())
		c.mu.Unlock()
		c.kill(errStarving)
		return
	}
	if c.discovery {
		// A discovery session has one purpose and no reason to stay. Pings are no purpose.
		if c.quiet++; c.quiet > 8 {
			c.mu.Unlock()
			c.kill(errIdle)
			return
		}
	}
	if floor := c.floorLocked(); c.peak*4 <= c.window && c.window > floor {
		c.window = max(floor, c.window/2)
	}
	var idle *mem.Quota
	if c.peak == 0 && c.live == 0 {
		c.free, c.tasks, c.itts = nil, nil, nil
		c.datamover.idleLocked()
		idle = c.quota
	}
	c.peak = c.active
	c.ticker.Reset(c.tickEvery())
	c.mu.Unlock()
	if idle != nil {
		idle.Trim() // not under mu: what comes free may be what another session waits for
	}
}

// pingLocked sends an unsolicited NOP-In that wants an answer (section 11.19).
func (c *conn) pingLocked() {
	if c.nopTTT++; c.nopTTT == iscsi.Reserved {
		c.nopTTT = 1
	}
	p := iscsi.NopIn{ITT: iscsi.Reserved, TTT: c.nopTTT}
	var h [iscsi.BHSLen]byte
	p.Put(h[:])
	c.numbersLocked(h[:], false)
	c.controlLocked(h[:], nil)
}

// finish runs on the owner once its datamover is dead: every move has ended or ends here, then the nexus closes, and with its
// last command the session is gone.
func (c *conn) finish(err error) {
	c.mu.Lock()
	if c.killErr == nil {
		c.killErr = err
	}
	err = c.killErr
	was := c.state
	c.state = stateDead
	if c.loginTimer != nil {
		c.loginTimer.Stop()
	}
	if c.ticker != nil {
		c.ticker.Stop()
	}
	var stuck []*task
	for _, t := range c.tasks {
		if t.move.underWay() {
			t.endMoveLocked()
			stuck = append(stuck, t)
		}
	}
	// A task whose response waited for data that will not come any more is over.
	var over []*task
	for _, t := range c.tasks {
		if t.state == taskDeferred {
			over = append(over, t)
		}
	}
	for _, t := range over {
		c.endTaskLocked(t)
	}
	nexus, sess := c.nexus, c.sess
	c.mu.Unlock()
	c.cancel()

	for _, t := range stuck {
		t.Moved(err)
	}
	c.srv.connGone(c)
	if sess == nil {
		return
	}
	if was == stateFull || was == stateEnding {
		c.rec.note("ended: %v", err)
		c.srv.keepTrace(sess, err)
		c.srv.countEnd(err)
		c.logEnd(err)
	}
	gone := func() {
		if c.quota != nil {
			c.quota.Close()
		}
		c.srv.sessionGone(sess)
	}
	if nexus == nil {
		gone()
		return
	}
	nexus.Close(gone)
}

// countEnd counts a session that is over by reason. The reasons are those below; what a fabric or a socket says is one.
func (s *Server) countEnd(err error) {
	why := "connection_failed"
	var pe *iscsi.ProtocolError
	for _, r := range []struct {
		err  error
		name string
	}{{errLoggedOut, "logged_out"}, {errPeerClosed, "closed_by_initiator"}, {errReinstated, "reinstated"}, {errSilent, "silent"}, {errStarving, "starving"}, {errNoMemory, "no_memory"}, {errIdle, "idle_discovery"}, {errMadeRoom, "made_room"}, {errNotReading, "not_reading"},
		{errDown, "shutdown"}, {errRemoved, "target_removed"}, {errDropped, "dropped_by_operator"}, {errReset, "cold_reset"}, {errDefect, "defect"}} {
		if errors.Is(err, r.err) {
			why = r.name
		}
	}
	if errors.As(err, &pe) {
		why = "protocol_error"
	}
	s.mu.Lock()
	s.counts.Ended[why]++
	s.mu.Unlock()
}

func (c *conn) logEnd(err error) {
	f := []zap.Field{zap.String("initiator", c.initiator), zap.Stringer("remote", c.remote), zap.String("reason", err.Error())}
	if c.target != nil {
		f = append(f, zap.String("target", c.target.Name))
	}
	if errors.Is(err, errLoggedOut) || errors.Is(err, errPeerClosed) || errors.Is(err, errDown) {
		c.plog.session(c.sess, zap.InfoLevel, "session ended", f...)
		return
	}
	c.plog.session(c.sess, zap.WarnLevel, "session lost", f...)
}
