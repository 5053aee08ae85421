package srp

import (
	"errors"
	"fmt"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

// beginLocked notes what the device server wants moved.
func (t *task) beginLocked(m moveState, off, total int, data []mem.Span) {
	taskMove.Move(&t.move, m)
	t.off, t.total, t.data, t.next, t.under, t.failed = off, total, data, 0, 0, nil
}

// DataIn implements scsi.Mover. Any goroutine.
func (t *task) DataIn(_ *scsi.Command, off int, data []mem.Span) {
	c, n := t.c, int(mem.Total(data))
	c.mu.Lock()
	if n == 0 || c.state == channelDead {
		err := c.killErr
		c.mu.Unlock()
		if n == 0 {
			err = nil
		}
		t.Moved(err)
		return
	}
	t.beginLocked(moveIn, off, n, data)
	c.stats.bytesOut += uint64(n)
	c.writeLocked(t)
	c.kickLocked()
	c.mu.Unlock()
}

// writeLocked queues RDMA Writes of a task: all that are left, or as many as may be together. Behind the command's last goes the response.
func (c *channel) writeLocked(t *task) {
	waiting := 0
	t.spans = t.spans[:0] // those before have completed
	for k := 1; t.next < t.total; k++ {
		to, from := t.in.Find(int64(t.off+t.next)), len(t.spans)
		t.spans = mem.Part(t.spans, t.data, int64(t.next), min(int64(to.Len), int64(t.total-t.next), int64(c.caps.MaxMessage)))
		t.spans = t.spans[:min(len(t.spans), from+c.caps.MaxSGE)]
		n := int(mem.Total(t.spans[from:]))
		t.next += n
		wr := transport.WR{Op: transport.OpWrite, Token: token(tokWrite, t.slot), Local: t.spans[from:len(t.spans):len(t.spans)], Remote: transport.Remote{STag: to.Key, Off: to.VA}}
		end := t.next == t.total
		last := end && t.Last && t.ExpectOut == 0
		if (end || k == writesTogether) && !last {
			wr.Flags = transport.Signaled
		}
		waiting = c.owner.SendLocked(n, wr)
		if last {
			t.ends = true
			c.respondLocked(t)
		}
		if k == writesTogether {
			break
		}
	}
	if waiting >= corkBytes {
		c.owner.FlushLocked() // the initiator works on this while the owner reads what comes next
	}
}

// wrote handles the completion of a signaled Write: more are queued, or the move ends. A Write that failed has ended the connection, and that the move.
func (c *channel) wrote(slot int, err error) {
	c.mu.Lock()
	t := c.tasks[slot]
	if err != nil || t.move != moveIn {
		c.mu.Unlock()
		return
	}
	c.moved++
	if t.next < t.total {
		c.writeLocked(t)
		c.kickLocked()
		c.mu.Unlock()
		return
	}
	taskMove.Move(&t.move, moveNone)
	c.mu.Unlock()
	t.Moved(nil)
}

// DataOut implements scsi.Mover. Any goroutine. Immediate data is copied out of the receive, which is the task's until its response is queued.
func (t *task) DataOut(_ *scsi.Command, off int, data []mem.Span) {
	c, n := t.c, int(mem.Total(data))
	if t.cmd.Out.Format == wire.Immediate || n == 0 {
		if n > 0 {
			mem.Scatter(data, 0, t.cmd.Out.Data[off:off+n])
		}
		t.Moved(nil)
		return
	}
	c.mu.Lock()
	if c.state == channelDead {
		err := c.killErr
		c.mu.Unlock()
		t.Moved(err)
		return
	}
	if c.depth.Out == 0 {
		c.killLocked(errors.New("srp: an initiator that writes serves no RDMA Read"))
	}
	t.beginLocked(moveOut, off, n, data)
	c.stats.bytesIn += uint64(n)
	c.readLocked(t)
	c.kickLocked()
	c.mu.Unlock()
}

// readLocked queues RDMA Reads of a task, each from one descriptor into one piece of memory: as many as may be together.
func (c *channel) readLocked(t *task) {
	from := &t.out
	if t.state == taskTable {
		from = &t.tables.from
	}
	for t.under < readsTogether && t.next < t.total {
		at, i := t.next, 0
		for ; at >= t.data[i].Len; i++ {
			at -= t.data[i].Len
		}
		m := from.Find(int64(t.off + t.next))
		n := int(min(int64(m.Len), int64(t.data[i].Len-at), int64(c.caps.MaxMessage)))
		c.owner.ReadLocked(token(tokRead, t.slot), transport.Remote{STag: m.Key, Off: m.VA}, t.data[i].Cut(at, n))
		t.under++
		t.next += n
	}
}

// fetched handles a Read's completion.
func (c *channel) fetched(slot int, err error) {
	c.mu.Lock()
	c.owner.ReadEndedLocked()
	t := c.tasks[slot]
	t.under--
	switch {
	case err == nil:
		c.moved++
	case t.failed == nil:
		t.failed = fmt.Errorf("srp: RDMA Read from the initiator: %w", err)
	}
	if t.failed == nil {
		c.readLocked(t)
	}
	c.kickLocked()
	if t.under > 0 {
		c.mu.Unlock()
		return
	}
	err = t.failed
	taskMove.Move(&t.move, moveNone)
	if t.state == taskTable {
		c.tableUnlock(t, err)
		return
	}
	c.mu.Unlock()
	t.Moved(err)
}
