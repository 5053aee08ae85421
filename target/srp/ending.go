package srp

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/transport"
)

var (
	errPeerClosed = errors.New("srp: the initiator closed the connection")
	errLoggedOut  = errors.New("srp: the initiator logged out")
	errReplaced   = errors.New("srp: the initiator logged in again, and this channel made room")
	errSilent     = errors.New("srp: the initiator does not answer; is it alive and reachable?")
	errStarving   = errors.New("srp: the initiator moves none of the data that it asked for, and holds the memory for it")
	errDown       = errors.New("srp: the target is shutting down")
	errRemoved    = errors.New("srp: the target was removed, or the initiator may not use it any more")
	errDropped    = errors.New("srp: the session was dropped by the operator")
	errAborted    = errors.New("srp: the command was aborted")
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
		switch {
		case t.move != moveNone:
			taskMove.Move(&t.move, moveNone)
			if t.state != taskTable {
				stuck = append(stuck, t)
			}
		case t.state == taskLate && !t.ends, t.state == taskTable: // with the device server no more, or not yet
			c.withoutResponseLocked(t)
			c.freeLocked(t)
		}
		if t.state == taskRunning && !t.manages {
			left = append(left, taskName{t.LUN, t.Tag})
		}
	}
	c.late = nil
	sum := c.stats
	c.mu.Unlock()

	for _, t := range stuck {
		t.Moved(err)
	}
	if c.sess != nil {
		if was != channelLogin {
			c.logEnd(err)
		}
		c.srv.leaveSession(c, err, sum, left)
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

// refused counts and logs a login that was refused.
func (s *Server) refused(c *channel, r wire.RejectReason, why, err error) {
	s.mu.Lock()
	s.counts.Refused[fmt.Sprintf("%08x", uint32(r))]++
	s.mu.Unlock()
	f := []zap.Field{zap.Stringer("remote", c.peer.Remote), zap.String("initiator", c.login.Initiator.Name()), zap.String("why", why.Error())}
	if err != nil {
		f = append(f, zap.NamedError("answer", err))
	}
	s.opt.Audit.Warn("SRP login refused", f...)
}

// began counts and logs a channel that was accepted.
func (s *Server) began(c *channel) {
	s.mu.Lock()
	s.counts.Logins++
	s.mu.Unlock()
	s.opt.Audit.Info("SRP channel began", zap.String("initiator", c.login.Initiator.Name()), zap.Stringer("remote", c.peer.Remote), zap.String("target", c.sess.key.target),
		zap.Uint32("session", c.sess.id), zap.Uint32("channel", c.number), zap.Int("credits", c.credits), zap.Int("unit", c.unit), zap.Bool("immediate_data", c.immediate > 0))
}

func (c *channel) logEnd(err error) {
	f := []zap.Field{zap.String("initiator", c.login.Initiator.Name()), zap.Stringer("remote", c.peer.Remote), zap.String("target", c.sess.key.target),
		zap.Uint32("session", c.sess.id), zap.Uint32("channel", c.number), zap.String("reason", err.Error())}
	if errors.Is(err, errLoggedOut) || errors.Is(err, errPeerClosed) || errors.Is(err, errDown) {
		c.srv.opt.Audit.Info("SRP channel ended", f...)
		return
	}
	c.srv.opt.Audit.Warn("SRP channel lost", f...)
}

// ended counts a session that is over, by reason. All that a fabric says is one reason.
func (s *Server) ended(err error) {
	why := "connection_failed"
	for _, r := range []struct {
		err  error
		name string
	}{{errLoggedOut, "logged_out"}, {errPeerClosed, "closed_by_initiator"}, {errReplaced, "reinstated"}, {errSilent, "silent"}, {errStarving, "starving"}, {errDown, "shutdown"},
		{errRemoved, "target_removed"}, {errDropped, "dropped_by_operator"}} {
		if errors.Is(err, r.err) {
			why = r.name
		}
	}
	var pe *wire.ProtocolError
	if errors.As(err, &pe) {
		why = "protocol_error"
	}
	s.mu.Lock()
	s.counts.Ended[why]++
	s.mu.Unlock()
}

// Counts reads the counters.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Counts{Logins: s.counts.Logins, Refused: map[string]uint64{}, Ended: map[string]uint64{}}
	for k, n := range s.counts.Refused {
		out.Refused[k] = n
	}
	for k, n := range s.counts.Ended {
		out.Ended[k] = n
	}
	return out
}
