package scsi

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"
)

func wait(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
}

// manage runs a function and returns a channel that has its answer once it has come.
func manage(n *Nexus, fn TMF, lun, tag uint64) chan TMFResponse {
	ch := make(chan TMFResponse, 1)
	n.Manage(fn, lun, tag, func(r TMFResponse) { ch <- r })
	return ch
}

func answer(t testing.TB, ch chan TMFResponse, want TMFResponse) {
	t.Helper()
	select {
	case r := <-ch:
		if r != want {
			t.Fatalf("response %d, want %d", r, want)
		}
	case <-time.After(patience):
		t.Fatal("no response")
	}
}

func hold(d *disk) {
	d.mu.Lock()
	d.hold = true
	d.mu.Unlock()
}

// SAM-5 section 7.1: a function is complete when the tasks that it aborts are gone. A write that the medium still has is
// not gone.
func TestAbortIsAnsweredAfterTheMediumLetGo(t *testing.T) {
	for name, fn := range map[string]TMF{"ABORT TASK": AbortTask, "ABORT TASK SET": AbortTaskSet, "CLEAR TASK SET": ClearTaskSet,
		"LOGICAL UNIT RESET": LogicalUnitReset, "I_T NEXUS RESET": ITNexusReset, "TARGET WARM RESET": TargetWarmReset, "TARGET COLD RESET": TargetColdReset} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			hold(r.disk)
			c, h := r.start(r.n, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0, func(c *Command, _ *host) { c.Tag = 7 })
			<-r.disk.arrived
			ch := manage(r.n, fn, 0, 7)
			select {
			case <-ch:
				t.Fatal("answered while the medium has the write")
			case <-h.done:
				t.Fatal("completed while the medium has the write")
			default:
			}
			r.disk.letGo()
			answer(t, ch, FunctionComplete)
			select {
			case <-h.done:
			default:
				t.Fatal("answered before the command completed")
			}
			if !c.Silent {
				t.Errorf("the aborted command answers %v", c.Status)
			}
		})
	}
}

func TestAbortEndsAMoveThatNeverComes(t *testing.T) {
	for _, cdbs := range []string{"2a 00 00000000 00 0001 00", "2f 02 00000000 00 0001 00"} {
		r := newRig(t)
		c, h := r.start(r.n, cdb(cdbs), pattern(512, 1), 0, func(c *Command, h *host) {
			c.Tag = 9
			h.hold = make(chan func(), 1)
		})
		for {
			h.mu.Lock()
			there := h.pending != nil
			h.mu.Unlock()
			if there {
				break
			}
			time.Sleep(time.Millisecond)
		}
		answer(t, manage(r.n, AbortTask, 0, 9), FunctionComplete)
		wait(t, "completion", h.done)
		if !c.Silent {
			t.Error("it answers")
		}
		if r.disk.data[1] != 0 {
			t.Error("it wrote")
		}
	}
}

func TestQueriesAndWrongNumbers(t *testing.T) {
	r := newRig(t)
	hold(r.disk)
	_, h := r.start(r.n, cdb("28 00 00000000 00 0001 00"), nil, 512, func(c *Command, _ *host) { c.Tag = 7 })
	<-r.disk.arrived
	answer(t, manage(r.n, QueryTask, 0, 7), FunctionSucceeded)
	answer(t, manage(r.n, QueryTask, 0, 8), FunctionComplete)
	answer(t, manage(r.n, QueryTaskSet, 0, 0), FunctionSucceeded)
	answer(t, manage(r.n, QueryAsyncEvent, 0, 0), FunctionComplete)
	answer(t, manage(r.n, AbortTask, 0, 8), TaskDoesNotExist)
	answer(t, manage(r.n, AbortTaskSet, EncodeLUN(5), 0), LUNDoesNotExist)
	answer(t, manage(r.n, ClearACA, 0, 0), TMFNotSupported)
	r.disk.letGo()
	h.wait(t)
	answer(t, manage(r.n, QueryTaskSet, 0, 0), FunctionComplete)
	r.lu.attention(ASCCapacityChanged, nil)
	answer(t, manage(r.n, QueryAsyncEvent, 0, 0), FunctionSucceeded)
	if b := r.n.AsyncInfo(0); b != [3]byte{0x16, 0x2A, 0x09} {
		t.Errorf("async information % X", b)
	}
}

func TestNexusCloseWaitsForItsCommands(t *testing.T) {
	r := newRig(t)
	hold(r.disk)
	c, h := r.start(r.n, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0)
	<-r.disk.arrived
	var closed atomic.Bool
	done := make(chan struct{})
	r.n.Close(func() { closed.Store(true); close(done) })
	if closed.Load() {
		t.Fatal("closed while the medium has a write")
	}
	r.disk.letGo()
	wait(t, "close", done)
	wait(t, "completion", h.done)
	if !c.Silent {
		t.Error("a command of a closed nexus answers")
	}
	// A command that comes late ends silently, too.
	c, h = r.start(r.n, cdb("28 00 00000000 00 0001 00"), nil, 512)
	wait(t, "completion", h.done)
	if !c.Silent {
		t.Error("it answers")
	}
}

// SAM-5 section 8.6: ORDERED waits for all older tasks, and younger ones wait for it; HEAD OF QUEUE waits for nobody.
func TestTaskAttributes(t *testing.T) {
	r := newRig(t)
	hold(r.disk)
	with := func(a Attr) func(*Command, *host) { return func(c *Command, _ *host) { c.Attr = a } }
	_, s1 := r.start(r.n, cdb("28 00 00000000 00 0001 00"), nil, 512, with(Simple))
	<-r.disk.arrived
	_, o := r.start(r.n, cdb("28 00 00000001 00 0001 00"), nil, 512, with(Ordered))
	_, s2 := r.start(r.n, cdb("28 00 00000002 00 0001 00"), nil, 512, with(Simple))
	_, q := r.start(r.n, cdb("28 00 00000003 00 0001 00"), nil, 512, with(HeadOfQueue))
	<-r.disk.arrived // the head of queue command
	select {
	case <-r.disk.arrived:
		t.Fatal("a task overtook an ordered one")
	default:
	}
	// INQUIRY runs whatever waits.
	r.good(nil, 96, "12 00 00 00 60 00")
	r.disk.letGo()
	for _, h := range []*host{s1, o, s2, q} {
		h.wait(t)
	}
	// Order on the medium: both enabled ones, then ORDERED alone, then SIMPLE.
	if n := len(r.disk.log); n < 4 {
		t.Fatal(n)
	}
}

func TestAbortOfAWaitingTaskLetsTheNextRun(t *testing.T) {
	r := newRig(t)
	hold(r.disk)
	_, s1 := r.start(r.n, cdb("28 00 00000000 00 0001 00"), nil, 512)
	<-r.disk.arrived
	c, o := r.start(r.n, cdb("28 00 00000001 00 0001 00"), nil, 512, func(c *Command, _ *host) { c.Attr, c.Tag = Ordered, 5 })
	_, s2 := r.start(r.n, cdb("28 00 00000002 00 0001 00"), nil, 512)
	answer(t, manage(r.n, AbortTask, 0, 5), FunctionComplete)
	wait(t, "abort", o.done)
	if !c.Silent {
		t.Error("it answers")
	}
	<-r.disk.arrived // s2 runs though s1 still does
	r.disk.letGo()
	s1.wait(t)
	s2.wait(t)
}

// Control mode page, TAS: whose commands somebody else aborts is told by TASK ABORTED or by a unit attention.
func TestClearTaskSetTellsOthers(t *testing.T) {
	for _, tas := range []bool{false, true} {
		r := newRig(t, func(o *LUOptions) { o.SharedTaskSet = true })
		r.lu.set(flagTAS, tas)
		other := r.nexus(2)
		hold(r.disk)
		c, h := r.start(other, cdb("28 00 00000000 00 0001 00"), nil, 512)
		<-r.disk.arrived
		ch := manage(r.n, ClearTaskSet, 0, 0)
		r.disk.letGo()
		answer(t, ch, FunctionComplete)
		wait(t, "completion", h.done)
		next := r.run(other, nil, 0, "00 00 00 00 00 00")
		if tas {
			if c.Silent || c.Status != StatusTaskAborted || next.Status != StatusGood {
				t.Errorf("TAS: %v, silent %v, then %v", c.Status, c.Silent, next.Status)
			}
		} else if !c.Silent || next.asc() != ASCCommandsCleared {
			t.Errorf("no TAS: silent %v, then %04X", c.Silent, next.asc())
		}
	}
}

// SAM-5 sections 5.6 and 6.3.3: whose command a reset by another nexus ends hears of it, by the status of the command and
// by a unit attention; where the control mode page has TAS zero by the unit attention alone. TAS is one at first.
func TestWhomAnotherNexusAbortsIsTold(t *testing.T) {
	for name, fn := range map[string]TMF{"LOGICAL UNIT RESET": LogicalUnitReset, "TARGET WARM RESET": TargetWarmReset} {
		for _, tas := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, TAS %v", name, tas), func(t *testing.T) {
				r := newRig(t)
				if page := r.good(nil, 64, "1a 08 0a 00 40 00"); page[4+2+3]&0x40 == 0 {
					t.Errorf("control mode page % X", page[4:16])
				}
				r.lu.set(flagTAS, tas)
				other := r.nexus(2)
				hold(r.disk)
				c, h := r.start(other, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0)
				<-r.disk.arrived
				own, oh := r.start(r.n, cdb("28 00 00000000 00 0001 00"), nil, 512)
				<-r.disk.arrived
				ch := manage(r.n, fn, 0, 0)
				r.disk.letGo()
				answer(t, ch, FunctionComplete)
				wait(t, "completion", h.done)
				wait(t, "completion", oh.done)
				if c.Silent == tas || tas && c.Status != StatusTaskAborted {
					t.Errorf("the other's write: silent %v, %v", c.Silent, c.Status)
				}
				if !own.Silent {
					t.Errorf("the command of who asked is answered: %v", own.Status)
				}
				if next := r.run(other, nil, 0, "00 00 00 00 00 00"); next.asc() != ASCBusDeviceReset {
					t.Errorf("then %v %04X", next.Status, next.asc())
				}
			})
		}
	}
}

// What a function aborts may belong to a nexus that is just ending: its write may still be with the medium.
func TestFunctionsWaitForANexusThatEnds(t *testing.T) {
	for name, fn := range map[string]TMF{"CLEAR TASK SET": ClearTaskSet, "LOGICAL UNIT RESET": LogicalUnitReset, "TARGET WARM RESET": TargetWarmReset} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *LUOptions) { o.SharedTaskSet = fn == ClearTaskSet })
			other := r.nexus(2)
			hold(r.disk)
			_, h := r.start(other, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0)
			<-r.disk.arrived
			closed := make(chan struct{})
			other.Close(func() { close(closed) })
			ch := manage(r.n, fn, 0, 0)
			select {
			case <-ch:
				t.Fatal("answered while the medium has a write of the other nexus")
			default:
			}
			r.disk.letGo()
			answer(t, ch, FunctionComplete)
			wait(t, "completion", h.done)
			wait(t, "close", closed)
		})
	}
}

func TestUnitAttentionsAreQueuedPerNexus(t *testing.T) {
	r := newRig(t)
	var events atomic.Int32
	other := r.nexus(2, func(o *NexusOptions) { o.Async = func(AsyncEvent) { events.Add(1) } })
	r.lu.attention(ASCCapacityChanged, nil)
	r.lu.attention(ASCModeParametersChanged, nil)
	r.lu.attention(ASCCapacityChanged, nil)
	for _, n := range []*Nexus{r.n, other} {
		for _, want := range []ASC{ASCCapacityChanged, ASCModeParametersChanged} {
			// INQUIRY and REPORT LUNS leave them alone (SPC-4 section 6.6.1).
			if res := r.run(n, nil, 96, "12 00 00 00 60 00"); res.Status != StatusGood {
				t.Fatal(res.Status)
			}
			if res := r.run(n, nil, 0, "00 00 00 00 00 00"); res.asc() != want || res.key() != UnitAttention {
				t.Errorf("%04X, want %04X", res.asc(), want)
			}
		}
		if res := r.run(n, nil, 0, "00 00 00 00 00 00"); res.Status != StatusGood {
			t.Errorf("%v", res.Status)
		}
	}
	if events.Load() != 2 {
		t.Errorf("%d asynchronous events", events.Load())
	}
}

func TestLUNInventoryChanges(t *testing.T) {
	r := newRig(t)
	lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 4096), Name: "second"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.target.AddLUN(300, lu); err != nil {
		t.Fatal(err)
	}
	r.sense(UnitAttention, ASCLUNsChanged, nil, 0, "00 00 00 00 00 00")
	got := r.good(nil, 64, "a0 00 00 000000 00000040 00 00")
	if be32(got) != 16 || be64(got[8:]) != 0 || be64(got[16:]) != EncodeLUN(300) {
		t.Errorf("LUNs % X", got[:24])
	}
	if got := r.good(nil, 64, "a0 00 02 000000 00000040 00 00"); be32(got) != 24 || be64(got[24:]) != wellKnownReportLUNs {
		t.Errorf("LUNs % X", got[:32])
	}
	if got := r.good(nil, 64, "a0 00 01 000000 00000040 00 00"); be32(got) != 8 {
		t.Errorf("LUNs % X", got[:32])
	}
	c, h := r.start(r.n, cdb("25 00 00000000 00 0000 00"), nil, 8, func(c *Command, _ *host) { c.LUN = EncodeLUN(300) })
	h.wait(t)
	if c.Status != StatusGood { // REPORT LUNS took the attention away, on every LUN
		t.Fatal(c.Status)
	}
	if err := r.target.RemoveLUN(300); err != nil {
		t.Fatal(err)
	}
	c, h = r.start(r.n, cdb("00 00 00 00 00 00"), nil, 0, func(c *Command, _ *host) { c.LUN = EncodeLUN(300) })
	h.wait(t)
	if (result{c, nil}).asc() != ASCLUNotSupported {
		t.Error(c.Status)
	}
	// INQUIRY of a LUN that is not there says so in its data (SPC-4 section 6.6.2).
	c, h = r.start(r.n, cdb("12 00 00 00 60 00"), nil, 96, func(c *Command, _ *host) { c.LUN = EncodeLUN(300) })
	h.wait(t)
	if c.Status != StatusGood || h.in[0] != noDevice {
		t.Errorf("%v, %02X", c.Status, h.in[0])
	}
}

// A LUN goes at once, also below a medium that hangs; its unit is closed when its last command has ended.
func TestAUnitIsClosedAfterItsLastCommand(t *testing.T) {
	r := newRig(t)
	hold(r.disk)
	c, h := r.start(r.n, cdb("2a 00 00000000 00 0001 00"), pattern(512, 1), 0)
	<-r.disk.arrived
	if err := r.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		r.lu.Close()
		close(closed)
	}()
	for waits := false; !waits; time.Sleep(time.Millisecond) {
		r.lu.mu.Lock()
		waits = len(r.lu.idle) > 0
		r.lu.mu.Unlock()
	}
	select {
	case <-closed:
		t.Fatal("closed while the medium has a write")
	default:
	}
	r.disk.letGo()
	wait(t, "close", closed)
	wait(t, "completion", h.done)
	if c.Silent || c.Status != StatusTaskAborted {
		t.Errorf("%v, silent %v", c.Status, c.Silent)
	}
}
