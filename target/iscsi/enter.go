package iscsi

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// enterFull ends the login once there is memory for what the initiator may send then. It waits for that as long as a
// login may take.
func (c *conn) enterFull(ss *session, r *iscsi.LoginResponse, text []byte, cmdSN uint32, limit *time.Timer) {
	c.mu.Lock()
	held, mover := c.state == stateHeld, c.datamover
	c.mu.Unlock()
	if !held {
		return // finish has taken quota and nexus
	}
	err := mover.widen()
	c.mu.Lock()
	if c.state != stateHeld {
		c.mu.Unlock() // meanwhile
		return
	}
	if err == nil {
		err = mover.fullFeatureLocked()
	}
	if errors.Is(err, mem.ErrNoMemory) {
		if limit == nil {
			limit = time.AfterFunc(c.srv.opt.Timeouts.Login, func() { c.kill(errNoMemory) })
			c.loginTimer = limit
		}
		c.mu.Unlock()
		c.quota.Wait(func() { c.enterFull(ss, r, text, cmdSN, limit) })
		return
	}
	if err != nil {
		c.mu.Unlock()
		c.srv.roomFor(err)
		if !errors.Is(err, transport.ErrClosed) && !errors.Is(err, transport.ErrLost) { // the connection has ended: no want of memory
			c.plog.Warn("login refused: no memory for its receives", zap.Stringer("remote", c.remote), zap.String("initiator", ss.initiator), zap.Error(err))
		}
		c.kill(err)
		return
	}
	c.fullLocked(cmdSN)
	c.sendLoginLocked(r, text)
	c.datamover.flushLocked()
	window := c.window
	c.mu.Unlock()
	f := []zap.Field{zap.String("initiator", ss.initiator), zap.Stringer("remote", c.remote), zap.Bool("iser", c.iser), zap.Uint16("tsih", ss.tsih)}
	if ss.target != nil {
		f = append(f, zap.String("target", ss.target.Name))
	}
	c.rec.Note("session %d began: window %d, %s", ss.tsih, window, map[bool]string{true: "iSER", false: "iSCSI/TCP"}[c.iser])
	c.notePath()
	c.srv.mu.Lock()
	c.srv.counts.Logins++
	c.srv.mu.Unlock()
	c.recordSession(ss, zap.InfoLevel, "session began", f...)
}
