package srp

import (
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/devicework"
	"github.com/sluice-storage/sluice/internal/owner"
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/scsi"
)

// task is one request in progress: a command, which is its own Mover, or task management. channel.mu guards its fields where they do not say otherwise.
type task struct {
	scsi.Command
	c     *channel
	slot  int
	state taskState
	recv  int      // the receive that the request lies in
	tag   uint64   // the initiator's
	cmd   wire.Cmd // refers to the receive, until the response is queued
	cdb   [wire.CmdLen + 252 - 32]byte
	began time.Duration // on hist.Clock
	held  []*answer     // task management answers that must not overtake this response

	manages  bool          // it is task management
	response wire.Response // of it
	aborted  bool          // while its table was fetched
	ends     bool          // in taskLate: the response ends the move, and the command is not over

	move    moveState
	in, out wire.Segments
	tables  tables

	// The request of the device server: total bytes, from off of the command's on.
	off, total int
	data       []mem.Span
	next       int // bytes that are queued
	under      int // Reads queued or under way
	failed     error
	spans      []mem.Span // WR.Local of Writes
}

// taskName is what the device server knows a task by.
type taskName struct{ lun, tag uint64 }

// attrs are the task attributes of the device server.
var attrs = [8]scsi.Attr{wire.Simple: scsi.Simple, wire.HeadOfQueue: scsi.HeadOfQueue, wire.Ordered: scsi.Ordered, wire.ACA: scsi.ACA}

// takeTaskLocked returns a task from the free list or a new one.
func (c *channel) takeTaskLocked() *task {
	var t *task
	if n := len(c.free); n > 0 {
		t, c.free = c.free[n-1], c.free[:n-1]
	} else {
		t = &task{c: c, slot: len(c.tasks)}
		c.tasks = append(c.tasks, t)
	}
	c.live++
	c.busy++
	c.peak = max(c.peak, c.live)
	t.began = hist.Clock()
	return t
}

// freeLocked puts a task back, if its response is queued or none is due, and nothing of it is outstanding. The caller settles the channel.
func (c *channel) freeLocked(t *task) {
	if t.state != taskAnswered {
		return // it waits for its response
	}
	taskLife.Move(&t.state, taskFree)
	t.tables.release()
	t.cmd, t.in, t.out, t.data, t.failed = wire.Cmd{}, wire.Segments{}, wire.Segments{}, nil, nil
	t.manages, t.aborted, t.ends = false, false, false
	t.Reset()
	c.free = append(c.free, t)
	c.busy--
}

// command takes SRP_CMD. The owner calls it.
func (c *channel) command(recv int, b []byte) error {
	cmd, err := c.parse(b)
	if err != nil {
		return err
	}
	if err := cmd.AtMost(maxDescriptors); err != nil {
		return err
	}
	c.mu.Lock()
	t, err := c.takeLocked(wire.OpCmd, recv, cmd.Tag)
	if t == nil {
		c.mu.Unlock()
		return err
	}
	c.stats.commands++
	t.cmd = cmd
	t.LUN, t.CDB, t.Attr, t.Tag = cmd.LUN, t.cdb[:copy(t.cdb[:], cmd.CDB)], attrs[cmd.Attr], uint64(c.number)<<32|uint64(t.slot)
	if t.Attr == 0 {
		t.Attr = scsi.Simple // a reserved value
	}
	t.ExpectIn, t.ExpectOut, t.Mover = int64(cmd.In.Len), int64(cmd.Out.Len), t
	c.stats.bytesIn, c.stats.copied = c.stats.bytesIn+uint64(len(cmd.Out.Data)), c.stats.copied+uint64(len(cmd.Out.Data))
	taskLife.Move(&t.state, taskTable)
	ready, err := c.fetchLocked(t)
	nexus := c.sess.nexus
	c.mu.Unlock()
	if ready {
		nexus.Execute(&t.Command)
	}
	return err
}

func (c *channel) parse(b []byte) (cmd wire.Cmd, err error) {
	defer c.guard(wire.OpCmd, &err)
	return wire.ParseCmd(b, c.immediate)
}

// Defer implements blockdev.Deferrer. Only what is submitted while the owner handles completions is for the owner: it looks for work behind them.
func (t *task) Defer(by blockdev.Performer, r *blockdev.Request) bool {
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked || c.owner.OverLocked() {
		return false
	}
	owner.KeepOnceLocked(&c.owner, devicework.Work{By: by, Request: r})
	return true
}

// Complete implements scsi.Mover. The outcome is there, and nothing of the command touches medium or memory any more.
func (t *task) Complete(*scsi.Command) {
	c := t.c
	c.mu.Lock()
	c.completeLocked(t)
	c.kickLocked()
	c.mu.Unlock()
	c.settle()
}

func (c *channel) completeLocked(t *task) {
	switch {
	case t.state == taskAnswered:
	case t.Silent || c.state == channelDead:
		c.withoutResponseLocked(t)
	default:
		c.respondLocked(t)
	}
	c.freeLocked(t)
}

// respondLocked queues a response, or puts it off until one that was queued before has left.
func (c *channel) respondLocked(t *task) {
	if len(c.freeSend) == 0 || len(c.late) > 0 {
		taskLife.Move(&t.state, taskLate)
		c.late = append(c.late, t)
		return
	}
	c.answerLocked(t)
}

// answerLocked queues the response of a task. Its receive is posted before that leaves, and the credits of all receives that are posted go with it.
func (c *channel) answerLocked(t *task) {
	c.repostLocked(t)
	r := wire.Rsp{Tag: t.tag, Credits: c.grantLocked(), Status: uint8(t.Status)}
	good := t.Status == scsi.StatusGood
	if t.manages {
		r.ResponseData = []byte{wire.ResponseLen - 1: byte(t.response)}
		good = t.response == wire.FunctionComplete
	} else {
		r.Sense = t.Sense[:min(len(t.Sense), responseUnit-wire.RspLen)]
		r.SetResiduals(t.TransferIn-t.ExpectIn, t.TransferOut-t.ExpectOut)
	}
	r.Notify = t.cmd.Notify.Wants(good)
	i := c.slotLocked()
	var move *task
	if t.ends {
		move = t
	}
	c.sendLocked(i, r.Put(c.sendMem[i].Bytes()), move)
	c.overLocked(t, &c.sends[i])
}

// grantLocked promises the receives that are posted and not promised yet: a unit which is queued now bears the credits.
func (c *channel) grantLocked() int32 {
	n := c.owed
	c.promised, c.owed = c.promised+n, 0
	return int32(n)
}

// repostLocked posts the receive of a task again; nothing refers to it any more. The task is answered.
func (c *channel) repostLocked(t *task) {
	taskLife.Move(&t.state, taskAnswered)
	t.cmd.CDB, t.cmd.In, t.cmd.Out = nil, wire.Buffer{}, wire.Buffer{}
	c.recvLocked(t.recv)
	c.owed++
	c.live--
}

// withoutResponseLocked ends a task that gets no response.
func (c *channel) withoutResponseLocked(t *task) {
	c.repostLocked(t)
	c.overLocked(t, nil)
	if c.live == 0 {
		c.askLocked() // no response of another task takes the credit along
	}
}

// overLocked is behind the response of a task, which lies in s, or in place of it: then s is nil. Task management answers of this channel follow the response
// on its queue pair. Those of another could overtake it, and wait until it has left.
func (c *channel) overLocked(t *task, s *sendSlot) {
	for i, a := range t.held {
		if s != nil && a.t.c != c {
			s.held = append(s.held, a)
		} else {
			go a.release() // which wants the lock of the channel that it is for
		}
		t.held[i] = nil
	}
	t.held = t.held[:0]
	if !t.manages {
		c.rec.EndLocked(&t.Command, t.tag, t.began)
	}
	if c.state == channelDraining && c.live == 0 {
		c.logoutLocked()
	}
}
