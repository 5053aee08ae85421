package srp

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/flight"
	"github.com/sluice-storage/sluice/target/peerlog"
	"github.com/sluice-storage/sluice/transport"
)

// endError is why a channel ends; name is that of the counter.
type endError struct {
	name, text string
	reason     wire.LogoutReason // that the initiator is told, LogoutNone where the standard has none for it
}

func (e *endError) Error() string { return "srp: " + e.text }

var (
	errPeerClosed = &endError{name: "closed_by_initiator", text: "the initiator closed the connection"}
	errLoggedOut  = &endError{name: "logged_out", text: "the initiator logged out"}
	errReplaced   = &endError{name: "reinstated", text: "the initiator logged in again, and this channel made room", reason: wire.LogoutMultichannel}
	errSilent     = &endError{name: "silent", text: "the initiator does not answer; is it alive and reachable?"}
	errStarving   = &endError{name: "starving", text: "the initiator moves none of the data that it asked for, and holds the memory for it"}
	errDown       = &endError{name: "shutdown", text: "the target is shutting down"}
	errRemoved    = &endError{name: "target_removed", text: "the target was removed, or the initiator may not use it any more"}
	errDefect     = &endError{name: "defect", text: "a unit of this channel met a defect of this program; the log has the place"}
	errDropped    = &endError{name: "dropped_by_operator", text: "the session was dropped by the operator"}
)

// named says what the end of a connection was. Where the initiator did not want it, what the fabric says is what the operator needs.
func named(err error) error {
	var te *transport.TerminateError
	if errors.Is(err, transport.ErrClosed) && !errors.As(err, &te) && !errors.Is(err, transport.ErrLost) {
		return errPeerClosed
	}
	return err
}

// finish runs on the owner at the end of a channel. It ends every move that has not ended, and has the channel's commands aborted. What is left of the
// channel is gone with its last task.
func (c *channel) finish(err error) {
	c.mu.Lock()
	c.noteLocked(named(err))
	err = c.killErr
	c.corked = false
	c.mu.Unlock()
	c.cancel()
	c.owner.Drain(transport.Reason{})

	c.mu.Lock()
	was := c.state
	channelLife.Move(&c.state, channelDead)
	if c.ticker != nil {
		c.ticker.Stop()
	}
	var stuck []*task
	var left []taskName
	for _, t := range c.tasks {
		moving := t.move != moveNone
		if moving {
			taskMove.Move(&t.move, moveNone)
		}
		switch {
		case t.state == taskTable, t.state == taskLate && !t.ends: // with the device server not yet, or no more
			c.withoutResponseLocked(t)
			c.freeLocked(t)
		case moving:
			stuck = append(stuck, t)
		}
		if t.state == taskRunning && !t.manages {
			left = append(left, taskName{t.LUN, t.Tag})
		}
	}
	c.late = nil
	for i := range c.sends { // those that never were at the queue pair have no completion
		c.sends[i].releaseLocked()
	}
	c.mu.Unlock()

	for _, t := range stuck {
		t.Moved(err)
	}
	if c.sess != nil {
		c.srv.leaveSession(c, err, was != channelLogin, left)
	}
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.settle()
}

// settle gives back the memory of a channel that has ended with its last task: receives may be read until then.
func (c *channel) settle() {
	c.mu.Lock()
	over := c.ended && c.busy == 0
	if over {
		c.ended = false
	}
	bufs := c.bufs
	c.mu.Unlock()
	if !over {
		return
	}
	for _, b := range bufs {
		b.Release()
	}
	if c.quota != nil {
		c.quota.Close()
	}
	c.srv.channelGone(c)
}

// fields are what each line of the record says of a channel.
func (c *channel) fields(more ...zap.Field) []zap.Field {
	f := append(more, zap.Stringer("remote", c.peer.Remote), zap.String("initiator", c.login.Initiator.Name()))
	if c.sess != nil {
		f = append(f, zap.String("target", c.sess.key.target), zap.Uint32("session", c.sess.id), zap.Uint32("channel", c.number))
	}
	return f
}

// refused counts and records a login that was refused.
func (s *Server) refused(c *channel, r wire.RejectReason, why error) {
	s.mu.Lock()
	s.counts.Refused[fmt.Sprintf("%08x", uint32(r))]++
	s.mu.Unlock()
	c.plog.Record(peerlog.Refusals, zap.WarnLevel, "SRP login refused", c.fields(zap.String("why", why.Error()))...)
}

// began counts and records a channel that was accepted.
func (s *Server) began(c *channel) {
	s.mu.Lock()
	s.counts.Logins++
	s.mu.Unlock()
	c.rec.Note("channel %d of session srp%d began: %d credits, units of %d bytes, immediate data from byte %d on", c.number, c.sess.id, c.credits, c.unit, c.immediate)
	c.rec.NotePath(c.dev, c.owner.QP)
	c.plog.Record(peerlog.Sessions, zap.InfoLevel, "SRP channel began", c.fields(zap.Int("credits", c.credits), zap.Int("unit", c.unit), zap.Bool("immediate_data", c.immediate > 0))...)
}

// over records the end of a channel that was accepted, and keeps its trace. The session is counted when its last channel is.
func (s *Server) over(c *channel, last bool, info SessionInfo, err error) {
	name, e, pe := "connection_failed", (*endError)(nil), (*wire.ProtocolError)(nil)
	if errors.As(err, &e) {
		name = e.name
	} else if errors.As(err, &pe) {
		name = "protocol_error"
	}
	c.rec.Note("channel %d ended: %v", c.number, err)
	p := past{info: info, ended: err.Error()}
	c.mu.Lock()
	p.trace.AddLocked(&c.rec)
	c.mu.Unlock()
	s.mu.Lock()
	s.past = flight.Keep(s.past, p)
	if last {
		s.counts.Ended[name]++
	}
	s.mu.Unlock()
	level, msg := zap.InfoLevel, "SRP channel ended"
	if e != errLoggedOut && e != errPeerClosed && e != errDown {
		level, msg = zap.WarnLevel, "SRP channel lost"
	}
	c.plog.Record(peerlog.Sessions, level, msg, c.fields(zap.String("reason", err.Error()))...)
}
