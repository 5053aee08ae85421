package lock

import (
	"encoding/binary"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/filesystem/filelock"
)

// waiter is a blocked LOCK.
type waiter struct {
	m         *Manager
	wire      nlm4.Lock // as the client sent it, for GRANTED
	exclusive bool
	to        answerTo
	done      chan nlm4.Stat // takes the first GRANTED_RES
}

// answerTo is where a client hears of things.
type answerTo struct {
	addr  netip.Addr
	local netip.Addr // what it calls this side
	msg   bool       // it speaks in asynchronous procedures

	secure bool // it speaks from a port that only root may use
}

// waiterOf is what waits for l, which the call's memory holds.
func (m *Manager) waiterOf(l *nlm4.Lock, exclusive bool, to answerTo) *waiter {
	c := *l
	c.Caller, c.FH, c.Owner = append([]byte(nil), l.Caller...), append([]byte(nil), l.FH...), append([]byte(nil), l.Owner...)
	return &waiter{m: m, wire: c, exclusive: exclusive, to: to, done: make(chan nlm4.Stat, 1)}
}

// Tell calls the client back.
func (w *waiter) Tell(g *filelock.Grant) bool {
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.cookie++
	cookie := m.cookie
	m.cookies[cookie] = w
	m.wg.Go(func() { m.grant(w, g, cookie) })
	return true
}

// grant tells a waiter that it has its lock. A client that does not want it any more, or cannot be reached, loses it.
func (m *Manager) grant(w *waiter, g *filelock.Grant, cookie uint64) {
	st, err := m.tell(w, cookie)
	m.mu.Lock()
	delete(m.cookies, cookie)
	m.mu.Unlock()
	// At the end of this life no lock goes back: its client may have heard of it, and reclaims it from the next.
	if taken := err == nil && st == nlm4.Granted || m.ctx.Err() != nil; g.End(taken) {
		m.log.Warn("a lock that was waited for goes back: its client did not take it", zap.ByteString("client", w.wire.Caller), zap.Stringer("address", w.to.addr), zap.Error(err))
	}
}

// tell calls GRANTED, or GRANTED_MSG for a client that asked by LOCK_MSG, and returns the client's answer.
func (m *Manager) tell(w *waiter, cookie uint64) (nlm4.Stat, error) {
	to := w.to
	a := nlm4.TestArgs{Cookie: binary.BigEndian.AppendUint64(nil, cookie), Exclusive: w.exclusive, Lock: w.wire}
	args := a.Append(nil)
	if !to.msg {
		reply, err := m.callBack(m.calls, to.local, to.addr, nlm4.Prog, nlm4.Vers, nlm4.ProcGranted, args)
		if err != nil {
			return nlm4.Failed, err
		}
		var r nlm4.Res
		x := newReader(reply)
		r.Parse(&x)
		return r.Stat, x.Err()
	}
	for range callTries {
		if _, err := m.callBack(m.calls, to.local, to.addr, nlm4.Prog, nlm4.Vers, nlm4.ProcGrantedMsg, args); err != nil {
			return nlm4.Failed, err
		}
		select {
		case st := <-w.done:
			return st, nil
		case <-time.After(callTime):
		case <-m.ctx.Done():
			return nlm4.Failed, m.ctx.Err()
		}
	}
	return nlm4.Failed, errNoAnswer
}

// grantedRes takes a client's answer to GRANTED_MSG.
func (m *Manager) grantedRes(r *nlm4.Res, addr netip.Addr) {
	if len(r.Cookie) != 8 {
		return
	}
	m.mu.Lock()
	w := m.cookies[binary.BigEndian.Uint64(r.Cookie)]
	m.mu.Unlock()
	if w == nil || w.to.addr != addr {
		return
	}
	select {
	case w.done <- r.Stat:
	default: // an answer is there already
	}
}
