package srp

import (
	"bytes"
	"testing"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
)

// manage sends a function and returns its answer.
func (f *fixture) manage(c *srpinit.Channel, fn wire.Function, lun uint16, task uint64) *srpinit.Pending {
	f.t.Helper()
	p, err := c.Manage(f.ctx(), fn, lun, task)
	must(f.t, err)
	return p
}

// managing sends a function and returns when the device server has it: a channel handles its units in order.
func (f *fixture) managing(c *srpinit.Channel, fn wire.Function, lun uint16, task uint64) *srpinit.Pending {
	f.t.Helper()
	p := f.manage(c, fn, lun, task)
	if r := f.manage(c, wire.AbortTask, 0, 1<<40).Wait(); r.Err != nil || r.Response() != wire.FunctionComplete {
		f.t.Fatalf("%+v", r)
	}
	return p
}

func (f *fixture) start(c *srpinit.Channel, cmd srpinit.Command) *srpinit.Pending {
	f.t.Helper()
	p, err := c.Start(f.ctx(), cmd)
	must(f.t, err)
	return p
}

// A command that is aborted gets no response. The function's answer comes when nothing of it can reach the medium any more, and brings back its credit.
func TestAbort(t *testing.T) {
	for name, fn := range map[string]wire.Function{"ABORT TASK": wire.AbortTask, "ABORT TASK SET": wire.AbortTaskSet, "CLEAR TASK SET": wire.ClearTaskSet, "LOGICAL UNIT RESET": wire.LUNReset} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f *fixture) {
				c := f.login(1)
				before := c.Credits()
				f.dev.shut()
				p := f.start(c, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
				<-f.dev.arrived
				q := f.managing(c, fn, 0, p.Tag)
				select {
				case <-q.Done():
					t.Fatal("answered while the write is with the medium")
				case <-p.Done():
					t.Fatal("the write is answered")
				default:
				}
				f.dev.open()
				if r := q.Wait(); r.Err != nil || r.Response() != wire.FunctionComplete || r.Status != 0 {
					t.Fatalf("%+v", r)
				}
				c.Abandon(p)
				f.ready(c)
				if got := c.Credits(); got != before {
					t.Errorf("%d credits, %d before", got, before)
				}
				want := noise(4096, 2)
				good(t, c.Do(f.ctx(), srpinit.Command{CDB: write10(8, 4096), Out: want}))
				if !bytes.Equal(f.stored(8*block, 4096), want) {
					t.Error("a write after the abort is not there")
				}
			})
		})
	}
}

// What cannot be done is refused, and does not wait for tasks.
func TestManagementRefused(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		f.dev.shut()
		p := f.start(c, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		<-f.dev.arrived
		for _, x := range []struct {
			fn   wire.Function
			lun  uint16
			task uint64
			want wire.Response
		}{
			{wire.ClearACA, 0, 0, wire.FunctionNotSupported}, {0x20, 0, 0, wire.FunctionNotSupported}, {0, 0, 0, wire.FunctionNotSupported},
			{wire.LUNReset, 5, 0, wire.FunctionFailed}, {wire.AbortTask, 0, 999, wire.FunctionComplete},
		} {
			if r := f.manage(c, x.fn, x.lun, x.task).Wait(); r.Err != nil || r.Response() != x.want {
				t.Errorf("function %02Xh: %v, response %d, want %d", x.fn, r.Err, r.Response(), x.want)
			}
		}
		f.dev.open()
		good(t, p.Wait())
	})
}

// A unit is addressed by any of its LUN fields: the flat form aborts what the peripheral form has begun.
func TestAbortByTheOtherLUNField(t *testing.T) {
	each(t, func(t *testing.T, f *fixture) {
		c := f.login(1)
		f.dev.shut()
		p := f.start(c, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
		<-f.dev.arrived
		q := f.manage(c, wire.AbortTask, 0x4000, p.Tag)
		r := f.manage(c, wire.AbortTask, 0, 999).Wait() // handled behind it
		must(t, r.Err)
		select {
		case <-q.Done():
			t.Error("answered while the write is with the medium")
		default:
		}
		f.dev.open()
		if r := q.Wait(); r.Err != nil || r.Response() != wire.FunctionComplete {
			t.Errorf("%+v", r)
		}
		f.ready(c)
		select {
		case <-p.Done():
			t.Error("the write that was aborted is answered")
		default:
		}
		c.Abandon(p)
	})
}

// A tag that is outstanding ends the channel, be it that of a command or of task management. One that is not is used again.
func TestTagOutstanding(t *testing.T) {
	for name, unit := range map[string]func(tag uint64) []byte{
		"command": func(tag uint64) []byte {
			b := make([]byte, wire.CmdLen)
			w := wire.Cmd{Tag: tag, CDB: make([]byte, 16)}
			return b[:w.Put(b, 0)]
		},
		"task management": func(tag uint64) []byte {
			b := make([]byte, wire.TskMgmtLen)
			m := wire.TskMgmt{Tag: tag, Function: wire.AbortTask, Task: tag}
			return b[:m.Put(b)]
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, f *fixture) {
				c := f.login(1)
				f.dev.shut()
				p := f.start(c, srpinit.Command{CDB: write10(0, 4096), Out: noise(4096, 1)})
				<-f.dev.arrived
				must(t, c.Send(unit(p.Tag)))
				if e := told(c); len(e) != 1 || e[0].Op != wire.OpTLogout || e[0].Reason != wire.LogoutInvalidUnit {
					t.Errorf("told %+v", e)
				}
				if r := p.Wait(); r.Err == nil {
					t.Errorf("the write is answered: %+v", r)
				}
				f.dev.open()
			})
		})
	}
}
