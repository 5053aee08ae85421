package block

import (
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/mem"
)

// write is the second goroutine of a connection: it sends what is queued, as much at a time as there is.
func (c *tcpConn) write(s *session) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return
		}
		items := c.txq
		c.txq, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		if len(items) == 0 {
			c.spare = items
			<-c.wake
			continue
		}
		for at := 0; at < len(items); {
			from := at
			at = c.gather(items, at)
			if err := c.sendAll(); err != nil {
				s.kill(err)
				return
			}
			c.sent(s, items[from:at])
		}
		clear(items)
		c.spare = items[:0]
	}
}

// sendAll sends all of the vector.
func (c *tcpConn) sendAll() error {
	if c.out == nil {
		c.nb = c.vec
		_, err := c.nb.WriteTo(c.conn)
		return err
	}
	c.outVec = c.outVec[:0]
	for _, b := range c.vec {
		c.outVec = sockio.Append(c.outVec, b)
	}
	if err := c.out.WriteAll(c.outVec); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// gather fills the vector from items[at:] and returns the first item that is not wholly in it.
func (c *tcpConn) gather(items []txItem, at int) int {
	c.vec, c.arena = c.vec[:0], c.arena[:0]
	size := 0
	for ; at < len(items); at++ {
		it := &items[at]
		switch {
		case it.raw != nil:
			c.vec = append(c.vec, it.raw)
		case !it.burst:
			c.vec = append(c.vec, it.t.slot.Bytes()[:it.hlen])
			c.payload(it.t.spans, 0, it.n)
			size += it.n
		default:
			for it.n > 0 {
				if size >= writeBatch || len(c.vec) >= maxIOV || cap(c.arena)-len(c.arena) < 2*pduRoom {
					return at
				}
				n := min(it.n, c.maxTx)
				p := iscsi.DataOut{Final: n == it.n, DataLen: n, ITT: it.t.itt, TTT: it.ttt, ExpStatSN: it.expStatSN, DataSN: it.dataSN, Offset: uint32(it.off)}
				from := len(c.arena)
				c.arena = iscsi.Append(c.arena, &p)
				if c.hdrDig {
					c.arena = append(c.arena, 0, 0, 0, 0)
					iscsi.PutDigest(c.arena[from+iscsi.BHSLen:], iscsi.Digest(c.arena[from:from+iscsi.BHSLen]))
				}
				c.vec = append(c.vec, c.arena[from:len(c.arena):len(c.arena)])
				c.payload(it.t.spans, it.off, n)
				it.off, it.n, it.dataSN = it.off+n, it.n-n, it.dataSN+1
				size += n
			}
		}
		if size >= writeBatch || len(c.vec) >= maxIOV || cap(c.arena)-len(c.arena) < 2*pduRoom {
			return at + 1
		}
	}
	return at
}

// payload adds n bytes of the list from off on, with padding and digest.
func (c *tcpConn) payload(spans []mem.Span, off, n int) {
	if n == 0 {
		return
	}
	crc := uint32(0)
	left := n
	for at := mem.At(spans, int64(off)); left > 0; {
		b := at.Next(left)
		if len(b) == 0 {
			break
		}
		c.vec = append(c.vec, b)
		if c.datDig {
			crc = iscsi.DigestUpdate(crc, b)
		}
		left -= len(b)
	}
	from := len(c.arena)
	for range iscsi.Pad(n) {
		c.arena = append(c.arena, 0)
	}
	if c.datDig {
		crc = iscsi.DigestUpdate(crc, c.arena[from:])
		c.arena = append(c.arena, 0, 0, 0, 0)
		iscsi.PutDigest(c.arena[len(c.arena)-iscsi.DigestLen:], crc)
	}
	if len(c.arena) > from {
		c.vec = append(c.vec, c.arena[from:len(c.arena):len(c.arena)])
	}
}

// sent tells the session that the memory of these items is no longer read.
func (c *tcpConn) sent(s *session, items []txItem) {
	s.mu.Lock()
	for i := range items {
		t := items[i].t
		if t == nil {
			continue
		}
		if t.queued--; t.queued == 0 && t.life == taskAnswered && !s.dead {
			s.finishLocked(t)
		}
	}
	s.pumpLocked()
	done := reqList{}
	if !s.corked {
		done = s.done.take()
	}
	s.mu.Unlock()
	done.complete()
}
