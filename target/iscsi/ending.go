package iscsi

import (
	"errors"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

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

// finish runs on the owner once its datamover is dead. It ends every move that has not ended, and closes the nexus. The
// session is gone with its last command.
func (c *conn) finish(err error) {
	c.mu.Lock()
	if c.killErr == nil {
		c.killErr = err
	}
	err = c.killErr
	was := c.state
	connLife.Move(&c.state, stateDead)
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
		c.dropMemory()
		return
	}
	if was == stateFull || was == stateEnding {
		c.rec.Note("ended: %v", err)
		c.srv.keepTrace(sess, err)
		c.srv.countEnd(err)
		c.logEnd(err)
	}
	gone := func() {
		if c.quota != nil {
			c.quota.Close()
		}
		c.dropMemory()
		c.srv.sessionGone(sess)
	}
	if nexus == nil {
		gone()
		return
	}
	nexus.Close(gone)
}

// countEnd counts a session that is over, by reason. All that a fabric or a socket says is one reason.
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
		c.recordSession(c.sess, zap.InfoLevel, "session ended", f...)
		return
	}
	c.recordSession(c.sess, zap.WarnLevel, "session lost", f...)
}
