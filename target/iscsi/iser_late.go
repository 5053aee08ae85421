package iscsi

import (
	"bytes"
	"errors"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// What a session has to send while the pool is dry waits for memory, in order: others give some back when their commands
// end, and a session that ended instead would come back and want more. Some bound is needed all the same, for a pool that
// stays dry: as many quarters of the peer timeout as a starving peer gets, or what is left of the login's time.

var errNoMemory = errors.New("iscsi: there was no memory for a response for too long; is `memory` too small for the sessions?")

// latePDU is a PDU that has no registered memory yet.
type latePDU struct {
	h       [iscsi.BHSLen]byte
	data    []byte
	inv     uint32
	move    *task
	control bool
}

// late is what waits to be sent; guarded by conn.mu.
type late struct {
	pdus  []latePDU
	quota *mem.Quota // made when it is needed first
	ticks int
}

// putOffLocked queues a PDU behind those that wait for memory.
func (x *iserDatamover) putOffLocked(h iscsi.BHS, data []byte, inv uint32, t *task, control bool) {
	l := &x.late
	l.pdus = append(l.pdus, latePDU{h: [iscsi.BHSLen]byte(h[:iscsi.BHSLen]), data: bytes.Clone(data), inv: inv, move: t, control: control})
	if len(l.pdus) > 1 {
		return // the first one asks
	}
	if l.quota == nil {
		l.quota = x.c.memory.Quota(lateMemory)
	}
	l.ticks = 0
	x.sendLateLocked()
}

// sendLateLocked queues what waits, as far as there is memory, and asks for more.
func (x *iserDatamover) sendLateLocked() {
	l := &x.late
	for len(l.pdus) > 0 && !x.owner.OverLocked() {
		p := &l.pdus[0]
		err := x.queuePDULocked(p.h[:], p.data, p.inv, p.move, p.control, l.quota.Get)
		if errors.Is(err, mem.ErrNoMemory) {
			l.quota.Wait(func() {
				x.c.mu.Lock()
				x.sendLateLocked()
				x.c.kickLocked()
				x.c.mu.Unlock()
			})
			return
		}
		if err != nil {
			x.failLocked(err)
			return
		}
		*p = latePDU{}
		l.pdus = l.pdus[1:]
	}
	l.pdus = nil
}

// lateLocked reports, once a tick, whether something has waited too long.
func (x *iserDatamover) lateLocked() bool {
	if len(x.late.pdus) == 0 {
		x.late.ticks = 0
		return false
	}
	x.late.ticks++
	return x.late.ticks >= starveTicks
}

// waitMem gets n bytes of registered memory for a connection before its login, and waits for them until the login's time
// is over. The owner calls it.
func (c *conn) waitMem(n int) (*mem.Buf, error) {
	s := c.memory.Quota(lateMemory)
	defer s.Close()
	return s.Await(c.ctx, n)
}
