package srp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/devicework"
	"github.com/sluice-storage/sluice/internal/owner"
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/flight"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/transport"
)

// channel is one RDMA channel of a session.
type channel struct {
	srv    *Server
	dev    transport.Device
	caps   transport.Caps
	group  uint16
	peer   transport.Peer
	host   string
	plog   *peerlog.Peer
	ctx    context.Context // ends with the channel
	cancel context.CancelFunc

	sess   *session // guarded by Server.mu until it is set
	number uint32   // among the channels of its session

	// Set when the login ends, read-only after.
	login     wire.LoginReq
	unit      int   // bytes of a receive
	credits   int   // the request limit
	immediate int   // where immediate data begins, 0 for none
	reserved  int64 // bytes of its receives that the server counts
	depth     transport.Depth
	quota     *mem.Quota // of receives and responses
	bufs      []*mem.Buf
	recvs     []mem.Span
	sendMem   []mem.Span
	overtaken devicework.Apart

	mu       sync.Mutex
	state    channelState
	killErr  error
	corked   bool
	owner    owner.Engine[devicework.Work]
	sends    []sendSlot
	freeSend []int
	late     []*task // responses that wait for a slot, oldest first
	tasks    []*task
	free     []*task
	live     int    // tasks that hold a receive
	busy     int    // tasks that are not free
	peak     int    // most commands lately
	promised int    // requests that the initiator may send
	owed     int    // receives that are posted and not promised
	asks     uint64 // the tag of the newest SRP_CRED_REQ; tags begin with 1
	answers  uint64 // the tag of the newest that is answered
	askedAt  uint64 // units when the newest was sent
	moved    uint64 // times that data has moved
	units    uint64 // received
	stats    counters
	rec      flight.Recorder

	ticker               *time.Timer
	ended                bool   // nothing is under way, nor will be
	lastMoved, lastUnits uint64 // as the last tick saw them
	stuck, quiet         int    // ticks without any
}

// sendSlot is the memory of one unit, and the task whose move ends with it.
type sendSlot struct {
	one    [1]mem.Span // WR.Local
	move   *task
	held   []*answer // of other channels, which wait for this response to have left
	logout bool
}

// Work request tokens: the kind in the high byte, an index below.
const (
	tokRecv uint64 = iota + 1
	tokSend
	tokWrite
	tokRead
)

func token(kind uint64, i int) uint64 { return kind<<56 | uint64(uint32(i)) }

// Completed handles completions.
func (c *channel) Completed(wcs []transport.WC, over bool) error {
	if !over {
		c.mu.Lock()
		c.corked = true
		c.mu.Unlock()
	}
	for i := range wcs {
		wc := &wcs[i]
		err, n := wc.Err, int(uint32(wc.Token))
		if err == nil && over {
			err = transport.ErrClosed
		}
		switch wc.Token >> 56 {
		case tokRecv:
			if err == nil {
				c.received(n, int(wc.Len))
			}
		case tokSend:
			c.sent(n, err)
		case tokWrite:
			c.wrote(n, err)
		case tokRead:
			c.fetched(n, err)
		}
	}
	return nil
}

// Perform performs a request, also one that the channel's end has overtaken.
func (c *channel) Perform(w devicework.Work, over bool) {
	if over {
		c.overtaken.Perform(w)
		return
	}
	w.Perform()
}

// PeakLocked is how many commands the initiator lately had here at once.
func (c *channel) PeakLocked() int { return c.peak }

// RestLocked sends all that waits for company.
func (c *channel) RestLocked() {
	c.corked = false
	c.owner.FlushLocked()
}

// HandedOff sends what waits for company.
func (c *channel) HandedOff() {
	c.mu.Lock()
	c.RestLocked()
	c.mu.Unlock()
}

// LateLocked has nothing to do: the response has left, or leaves when the new owner has handled its completions.
func (c *channel) LateLocked() {}

// FailedLocked ends the channel.
func (c *channel) FailedLocked(err error) { c.killLocked(err) }

// kickLocked flushes unless the owner will do it anyway.
func (c *channel) kickLocked() {
	if !c.corked {
		c.owner.FlushLocked()
	}
}

// guard makes a panic of a parser the end of the channel: it has changed nothing that others share.
func (c *channel) guard(op wire.Opcode, err *error) {
	if p := recover(); p != nil {
		c.srv.opt.Log.Error("a defect of this program ends a channel", zap.Any("panic", p), zap.Stringer("unit", op), zap.Stringer("remote", c.peer.Remote), zap.Stack("stack"))
		*err = errDefect
	}
}

// received handles one information unit. It breaks a rule, or becomes a task, or is an answer to what was asked.
func (c *channel) received(i, n int) {
	b := c.recvs[i].Bytes()
	if n > len(b) {
		n = len(b)
	}
	b = b[:n]
	op, err := wire.Unit(b)
	if err == nil {
		switch op {
		case wire.OpCmd:
			err = c.command(i, b)
		case wire.OpTskMgmt:
			err = c.manage(i, b)
		case wire.OpCredRsp:
			err = c.answered(i, b)
		case wire.OpILogout:
			if _, err = wire.ParseILogout(b); err == nil {
				c.kill(errLoggedOut)
			}
		case wire.OpAERRsp:
			err = &wire.ProtocolError{Unit: op, Reason: wire.LogoutUnasked, Detail: "an answer to a request that was not sent"}
		default:
			err = &wire.ProtocolError{Unit: op, Reason: wire.LogoutInvalidUnit, Detail: "it is not of those that an initiator sends on a channel"}
		}
	}
	if err != nil {
		c.broke(err)
	}
}

// recvLocked posts a receive again with what is sent next.
func (c *channel) recvLocked(i int) {
	c.owner.RecvLocked(transport.Recv{Token: token(tokRecv, i), Buf: c.recvs[i]})
}

// broke ends the channel of an initiator that broke a rule.
func (c *channel) broke(err error) {
	c.plog.Warn("SRP channel ends: the initiator broke a rule", zap.Stringer("remote", c.peer.Remote), zap.Error(err))
	c.leave(err, false)
}

// takeLocked counts a request in and returns its task. No task without an error means that the request is dropped, since the channel is ending.
func (c *channel) takeLocked(op wire.Opcode, recv int, tag uint64) (*task, error) {
	c.units++
	if c.state != channelLive {
		return nil, nil
	}
	if c.promised == 0 {
		return nil, &wire.ProtocolError{Unit: op, Reason: wire.LogoutInvalidUnit, Detail: fmt.Sprintf("a request beyond the limit of %d", c.credits)}
	}
	// A tag names one outstanding request of a channel: of two, no one could say whose a response is, or which one is to be aborted. SAM-5 calls it an overlapped command.
	for _, t := range c.tasks {
		if t.tag == tag && t.state != taskFree && t.state != taskAnswered {
			return nil, &wire.ProtocolError{Unit: op, Reason: wire.LogoutInvalidUnit, Detail: fmt.Sprintf("the tag %#x of a request that is outstanding", tag)}
		}
	}
	c.promised--
	t := c.takeTaskLocked()
	t.recv, t.tag = recv, tag
	return t, nil
}

// leave says SRP_T_LOGOUT and ends the channel behind it: at once, or, with drain, when the requests that run have ended. It takes no more.
func (c *channel) leave(why error, drain bool) {
	c.mu.Lock()
	login := c.state == channelLogin
	switch {
	case c.state == channelLive && drain && c.live > 0:
		c.noteLocked(why)
		channelLife.Move(&c.state, channelDraining)
	case c.state == channelLive, c.state == channelDraining && !drain:
		c.noteLocked(why)
		c.logoutLocked()
		c.kickLocked()
	}
	c.mu.Unlock()
	if login {
		c.kill(why)
	}
}

// logoutLocked queues SRP_T_LOGOUT, where an initiator may be asked something: it takes one request at a time.
func (c *channel) logoutLocked() {
	channelLife.Move(&c.state, channelLeaving)
	why := c.killErr
	if c.askedLocked() || len(c.freeSend) == 0 {
		c.killLocked(why)
		return
	}
	i := c.slotLocked()
	c.sends[i].logout = true
	c.sendLocked(i, wire.PutTLogout(c.sendMem[i].Bytes(), logoutReason(why), 0), nil)
	t := time.AfterFunc(lastWords, func() { c.kill(why) })
	context.AfterFunc(c.ctx, func() { t.Stop() })
}

// logoutReason is what an initiator is told of an end.
func logoutReason(err error) wire.LogoutReason {
	if pe := (*wire.ProtocolError)(nil); errors.As(err, &pe) {
		return pe.Reason
	}
	if e := (*endError)(nil); errors.As(err, &e) {
		return e.reason
	}
	return wire.LogoutNone
}

// noteLocked keeps the first reason of the end.
func (c *channel) noteLocked(why error) {
	if c.killErr == nil {
		c.killErr = why
	}
}

// kill ends the channel; the first reason counts. Any goroutine.
func (c *channel) kill(why error) {
	c.mu.Lock()
	c.noteLocked(why)
	qp := c.owner.QP
	c.mu.Unlock()
	c.cancel()
	if qp != nil {
		_ = qp.Close(transport.Reason{})
	}
}

// killLocked is kill for those who hold the lock, which Close may want.
func (c *channel) killLocked(why error) {
	c.noteLocked(why)
	go c.kill(why)
}

// releaseLocked lets the answers go that wait for the response: it has left, or never will.
func (s *sendSlot) releaseLocked() {
	for i, a := range s.held {
		go a.release() // which wants the lock of the channel that it is for
		s.held[i] = nil
	}
	s.held = s.held[:0]
}

// slotLocked takes a send slot; there is one.
func (c *channel) slotLocked() int {
	i := c.freeSend[len(c.freeSend)-1]
	c.freeSend = c.freeSend[:len(c.freeSend)-1]
	return i
}

// sendLocked queues the unit of n bytes in a slot; the move of a task, if any, ends when it has left.
func (c *channel) sendLocked(i, n int, move *task) {
	s := &c.sends[i]
	s.one[0], s.move = c.sendMem[i].Cut(0, n), move
	c.owner.SendLocked(0, transport.WR{Op: transport.OpSend, Flags: transport.Signaled | transport.Solicited, Token: token(tokSend, i), Local: s.one[:]})
}

// sent handles the completion of a Send: the response that waited longest takes its slot.
func (c *channel) sent(i int, err error) {
	c.mu.Lock()
	s := &c.sends[i]
	t := s.move
	s.move = nil
	s.releaseLocked()
	c.freeSend = append(c.freeSend, i)
	if s.logout {
		s.logout = false
		c.killLocked(c.killErr)
	}
	if err != nil {
		c.mu.Unlock() // the connection has ended
		return
	}
	c.moved++
	if t != nil {
		taskMove.Move(&t.move, moveNone)
	}
	if len(c.late) > 0 {
		late := c.late[0]
		c.late = c.late[1:]
		c.answerLocked(late)
		if !late.ends {
			c.freeLocked(late)
		}
		c.kickLocked()
	}
	c.mu.Unlock()
	if t != nil {
		t.Moved(nil)
	}
}
