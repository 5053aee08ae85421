package scsi

import (
	"encoding/binary"
	"testing"
	"time"
)

// copyRig has a second unit as LUN 1, with a disk that holds what is written to it.
type copyRig struct {
	*rig
	other *Nexus
	to    *LogicalUnit
	disk2 *disk
}

func newCopyRig(t *testing.T) *copyRig {
	r := newRig(t)
	c := &copyRig{rig: r, disk2: newDisk(8<<20, 512)}
	var err error
	if c.to, err = NewLogicalUnit(LUOptions{Device: c.disk2, Name: "to"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.to.background.Wait)
	if err := r.target.AddLUN(1, c.to); err != nil {
		t.Fatal(err)
	}
	r.run(r.n, nil, 0, "00 00 00 00 00 00")
	c.other = r.nexus(2)
	for range 3 {
		c.on1(r.n, "00 00 00 00 00 00", nil)
		c.on1(c.other, "00 00 00 00 00 00", nil)
	}
	return c
}

// on1 runs a command on LUN 1.
func (r *copyRig) on1(n *Nexus, hexes string, out []byte) result {
	c, h := r.start(n, cdb(hexes), out, 0, func(c *Command, _ *host) { c.LUN = EncodeLUN(1) })
	h.wait(r.t)
	return result{c, nil}
}

// begin copies 4 MiB from LUN 0 to LUN 1 and returns when the first write is with the medium.
func (r *copyRig) begin() (*Command, *host) {
	hold(r.disk2)
	c, h := r.copies(r.n, 0)
	<-r.disk2.arrived
	return c, h
}

// copies has n begin the copy, sent when it had heard the responses before a number.
func (r *copyRig) copies(n *Nexus, heard uint32) (*Command, *host) {
	list := make([]byte, 16+2*32+28)
	binary.BigEndian.PutUint16(list[2:], 64)
	binary.BigEndian.PutUint32(list[8:], 28)
	for k, lu := range []*LogicalUnit{r.lu, r.to} {
		d := list[16+32*k:]
		d[0], d[4], d[5], d[7] = 0xE4, 1, 3, 8
		copy(d[8:], lu.naa)
		d[30] = 2
	}
	s := list[16+64:]
	s[0], s[3], s[5], s[7] = 2, 0x18, 0, 1
	binary.BigEndian.PutUint16(s[10:], 8192)
	return r.start(n, cdb("83 00 0000000000000000 00000000 00 00"), list, 0, func(c *Command, _ *host) {
		c.Heard = heard
		binary.BigEndian.PutUint32(c.CDB[10:], uint32(len(list)))
	})
}

// remembers checks what RECEIVE COPY STATUS and FAILURE DETAILS tell of the copy (SPC-4 section 6.24): a host drops the source of
// one that is complete.
func (r *copyRig) remembers(state byte, status Status) {
	r.t.Helper()
	r.run(r.n, nil, 0, "00 00 00 00 00 00") // what became of the unit
	if b := r.good(nil, 12, "84 00 00 00 00 00 00 00 00 00 0000000c 00 00"); b[4] != state {
		r.t.Errorf("the copy is remembered as %d, want %d", b[4], state)
	}
	if b := r.good(nil, 64, "84 04 00 00 00 00 00 00 00 00 00000040 00 00"); b[56] != byte(status) {
		r.t.Errorf("the copy is remembered with status %02X, want %02X", b[56], byte(status))
	}
}

// An EXTENDED COPY is a command of the units that it reads and writes as well as of the one that it was sent to: what
// aborts the commands of its nexus there ends it, and is not over before its last write has left the medium.
func TestACopyEndsWithEitherUnit(t *testing.T) {
	for name, act := range map[string]func(r *copyRig, over chan struct{}){
		"LOGICAL UNIT RESET": func(r *copyRig, over chan struct{}) {
			r.other.Manage(LogicalUnitReset, EncodeLUN(1), 0, func(TMFResponse) { close(over) })
		},
		"PREEMPT AND ABORT": func(r *copyRig, over chan struct{}) {
			go func() {
				defer close(over)
				if res := r.on1(r.other, "5f 05 03 00 00 00000018 00", []byte{7: 2, 15: 1, 23: 0}); res.Status != StatusGood {
					r.t.Errorf("PREEMPT AND ABORT: %v", res.Status)
				}
			}()
		},
		"the LUN is removed and its unit closed": func(r *copyRig, over chan struct{}) {
			if err := r.target.RemoveLUN(1); err != nil {
				r.t.Error(err)
			}
			go func() { r.to.Close(); close(over) }()
		},
		"the nexus ends": func(r *copyRig, over chan struct{}) {
			r.n.Close(func() { close(over) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newCopyRig(t)
			for k, n := range []*Nexus{r.n, r.other} {
				if res := r.on1(n, "5f 06 00 00 00 00000018 00", []byte{15: byte(k + 1), 23: 0}); res.Status != StatusGood {
					t.Fatalf("REGISTER: %v %04X", res.Status, res.asc())
				}
			}
			c, h := r.begin()
			over := make(chan struct{})
			act(r, over)
			select {
			case <-over:
				t.Fatal("it is over while the medium has a write of the copy")
			case <-h.done:
				t.Fatal("the copy ended while the medium has a write of it")
			default:
			}
			for aborted := false; !aborted; time.Sleep(time.Millisecond) {
				c.x.mu.Lock()
				aborted = c.x.abort != abortNone
				c.x.mu.Unlock()
			}
			r.disk2.letGo()
			wait(t, "the end of the copy", h.done)
			wait(t, name, over)
			if name != "the nexus ends" {
				r.remembers(2, StatusTaskAborted)
			}
			if name != "the nexus ends" && (c.Silent || c.Status != StatusTaskAborted) {
				t.Errorf("the copy: silent %v, %v", c.Silent, c.Status)
			}
			if n := r.disk2.count(); n != 1 {
				t.Errorf("%d requests reached the medium, one was there before", n)
			}
		})
	}
}

// What is reserved while a copy runs binds the rest of it.
func TestAReservationEndsACopy(t *testing.T) {
	r := newCopyRig(t)
	c, h := r.begin()
	if res := r.on1(r.other, "16 00 00 00 00 00", nil); res.Status != StatusGood {
		t.Fatal(res.Status)
	}
	r.disk2.letGo()
	wait(t, "the end of the copy", h.done)
	if c.Status != StatusReservationConflict || r.disk2.count() != 1 {
		t.Errorf("%v after %d writes", c.Status, r.disk2.count())
	}
	r.remembers(2, StatusReservationConflict)
}

// A task set is what was sent to the LUN: to abort it there is nothing to a copy that came by another.
func TestAbortTaskSetLeavesCopiesOfOtherLUNs(t *testing.T) {
	r := newCopyRig(t)
	c, h := r.begin()
	answer(t, manage(r.n, AbortTaskSet, EncodeLUN(1), 0), FunctionComplete)
	r.disk2.letGo()
	wait(t, "the end of the copy", h.done)
	if c.Status != StatusGood || r.disk2.count() != 4 {
		t.Errorf("%v after %d writes", c.Status, r.disk2.count())
	}
	r.remembers(1, StatusGood)
}

func (d *disk) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.log)
}

// A copy that was sent before a reset of the unit that it writes to, and to another LUN, arrives after it: it writes nothing. One
// that was sent since does, though the initiator has sent nothing else to the unit.
func TestACopyThatWasUnderWayWritesNothingAfterAReset(t *testing.T) {
	r := newCopyRig(t)
	const next = 10 // the number of the first response after the reset
	n := r.nexus(3, func(o *NexusOptions) { o.NextResponse = func() uint32 { return next } })
	r.run(n, nil, 0, "00 00 00 00 00 00")
	r.on1(n, "00 00 00 00 00 00", nil)
	ch := make(chan TMFResponse, 1)
	r.other.Manage(LogicalUnitReset, EncodeLUN(1), 0, func(f TMFResponse) { ch <- f })
	answer(t, ch, FunctionComplete)
	writes := func() int {
		r.disk2.mu.Lock()
		defer r.disk2.mu.Unlock()
		return len(r.disk2.mapped)
	}
	c, h := r.copies(n, next)
	h.wait(t)
	if res := (result{c, nil}); res.key() != UnitAttention || res.asc() != ASCBusDeviceReset || writes() != 0 {
		t.Fatalf("sent before the reset: %v %04X, %d blocks are written", res.Status, res.asc(), writes())
	}
	c, h = r.copies(n, next+1)
	h.wait(t)
	if c.Status != StatusGood || writes() != 8192 {
		t.Fatalf("sent after it: %v, %d blocks are written", c.Status, writes())
	}
}
