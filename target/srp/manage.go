package srp

import (
	"sync/atomic"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/target/flight"
	"github.com/sluice-storage/sluice/target/scsi"
)

// answer is a task management response that waits for the responses of the tasks it is about, on each channel of the session. A task leaves its task set
// before its response is queued, and a response in between would be the first: the initiator uses the tag again when it has that.
type answer struct {
	t    *task
	left atomic.Int32 // the device server, and tasks without a response
	sent atomic.Bool
}

// functions are the task management functions of the device server, which never establishes an ACA condition.
var functions = map[wire.Function]scsi.TMF{wire.AbortTask: scsi.AbortTask, wire.AbortTaskSet: scsi.AbortTaskSet, wire.ClearTaskSet: scsi.ClearTaskSet,
	wire.LUNReset: scsi.LogicalUnitReset}

// manage takes SRP_TSK_MGMT. The owner calls it, so that no task is made meanwhile.
func (c *channel) manage(recv int, b []byte) error {
	req, err := wire.ParseTskMgmt(b)
	if err != nil {
		return err
	}
	c.mu.Lock()
	t, err := c.takeLocked(wire.OpTskMgmt, recv, req.Tag)
	if t == nil {
		c.mu.Unlock()
		return err
	}
	taskLife.Move(&t.state, taskRunning)
	t.manages, t.cmd.Notify = true, req.Notify
	c.mu.Unlock()
	c.rec.Note("task management function %02Xh for LUN %d, task %#x", uint8(req.Function), flight.LUN(req.LUN), req.Task)
	a := &answer{t: t}
	a.left.Store(1)
	fn, known := functions[req.Function]
	if !known {
		a.done(scsi.TMFNotSupported)
		return nil
	}
	ref := c.hold(a, &req)
	c.sess.nexus.Manage(fn, req.LUN, ref, a.done)
	return nil
}

// hold has an answer wait for the tasks that it is about, and ends those that the device server does not have yet. It returns what the device server knows
// the task of ABORT TASK by; tags are those of the channel.
func (c *channel) hold(a *answer, req *wire.TskMgmt) (ref uint64) {
	ref = ^uint64(0) // no task's
	c.srv.each(func(o *channel) bool { return o.sess == c.sess }, func(o *channel) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, t := range o.tasks {
			if t.manages || !sameUnit(t.LUN, req.LUN) || t.state == taskFree || t.state == taskAnswered {
				continue
			}
			if req.Function == wire.AbortTask {
				if o != c || t.tag != req.Task {
					continue
				}
				ref = t.Tag
			}
			a.left.Add(1)
			t.held = append(t.held, a)
			t.aborted = t.aborted || t.state == taskTable
		}
	})
	return ref
}

// sameUnit reports whether two LUN fields address one logical unit. A unit below 256 has a field of each form, and an initiator may use both (SAM-5
// section 4.7).
func sameUnit(a, b uint64) bool {
	m, is := scsi.DecodeLUN(a)
	n, too := scsi.DecodeLUN(b)
	return a == b || is && too && m == n
}

// done is told what the device server says of the function.
func (a *answer) done(r scsi.TMFResponse) {
	switch r {
	case scsi.FunctionComplete, scsi.TaskDoesNotExist: // a task that is over is as good as aborted
		a.t.response = wire.FunctionComplete
		a.release()
		return
	case scsi.TMFNotSupported:
		a.t.response = wire.FunctionNotSupported
	default:
		a.t.response = wire.FunctionFailed
	}
	a.send() // a refusal is about the request, not about tasks
}

func (a *answer) release() {
	if a.left.Add(-1) == 0 {
		a.send()
	}
}

// send queues the response, once.
func (a *answer) send() {
	if !a.sent.Swap(true) {
		a.t.Complete(nil)
	}
}
