package srp

import (
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

// An indirect buffer may have more memory descriptors than its unit bears. Then the unit says where the whole list of them lies, and it is fetched by
// RDMA Read before the command is executed.

// tables are the lists of one task that do not lie in its unit, of Data-Out and of Data-In.
type tables struct {
	bufs  [2]*mem.Buf
	from  wire.Segments // of the list that is fetched: one descriptor
	where [wire.MemoryLen]byte
	to    [1]mem.Span
}

func (t *tables) release() {
	for i, b := range t.bufs {
		if b != nil {
			b.Release()
			t.bufs[i] = nil
		}
	}
}

// fetchLocked has the next list of a task fetched. It reports whether all are there: then the command is to be executed. A task for whose list there is no
// memory has ended.
func (c *channel) fetchLocked(t *task) (ready bool, err error) {
	for i, b := range [...]*wire.Buffer{&t.cmd.Out, &t.cmd.In} {
		buf := t.tables.bufs[i]
		switch {
		case b.Table.Len == 0:
			continue
		case buf == nil:
			if buf, err = c.quota.Get(int(b.Table.Len)); err != nil {
				// The initiator repeats the command. One that waited here would be in no task set, and in no queue for memory.
				t.Status = scsi.StatusBusy
				c.respondLocked(t)
				c.freeLocked(t)
				return false, nil
			}
			t.tables.bufs[i] = buf
			b.Table.Put(t.tables.where[:])
			t.tables.from, t.tables.to[0] = wire.Segments{List: t.tables.where[:]}, buf.Span()
			t.beginLocked(moveOut, 0, buf.Len(), t.tables.to[:])
			c.readLocked(t)
			return false, nil
		}
		if err := t.cmd.Take(b, buf.Bytes()); err != nil {
			return false, err
		}
	}
	t.in.List, t.out.List = t.cmd.In.List, t.cmd.Out.List
	taskLife.Move(&t.state, taskRunning)
	return true, nil
}

// tableUnlock goes on when a list is there, or could not be fetched. It is called with the lock and returns without it.
func (c *channel) tableUnlock(t *task, err error) {
	ready := false
	if err != nil || t.aborted {
		err = nil // a Read that failed has ended the connection
		c.withoutResponseLocked(t)
		c.freeLocked(t)
	} else {
		ready, err = c.fetchLocked(t)
	}
	c.kickLocked()
	nexus := c.sess.nexus
	c.mu.Unlock()
	switch {
	case ready:
		nexus.Execute(&t.Command)
	case err != nil:
		c.broke(err)
	}
	c.settle()
}
