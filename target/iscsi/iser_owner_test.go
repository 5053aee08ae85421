package iscsi

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

// lender offers its writes to whoever submits them. One that begins with 0xff blocks until the valve is opened for it.
type lender struct {
	blockdev.Device
	valve     chan struct{}
	entered   chan struct{}
	performed atomic.Int32
	queued    atomic.Int32 // writes that nobody took
}

func (l *lender) Can(op blockdev.Op) bool { return blockdev.Can(l.Device, op) }

func (l *lender) Submit(r *blockdev.Request) {
	if r.Op == blockdev.Write {
		if r.Deferrer != nil && r.Deferrer.Defer(l, r) {
			return
		}
		l.queued.Add(1)
	}
	l.Device.Submit(r)
}

func (l *lender) Perform(r *blockdev.Request) {
	l.performed.Add(1)
	if r.Data[0].Bytes()[0] == 0xff {
		l.entered <- struct{}{}
		<-l.valve
	}
	l.Device.Submit(r)
}

func lend(f *fixture) *lender {
	l := &lender{Device: f.dev.Device, valve: make(chan struct{}), entered: make(chan struct{}, 100)}
	f.dev.Device = l
	return l
}

// blocking sends a WRITE of a block that blocks, by immediate data or for an RDMA Read, and returns its tag.
func (p *peer) blocking(l *lender, lba int, immediate bool) uint32 {
	p.t.Helper()
	data := bytes.Repeat([]byte{0xff}, 4096)
	c := p.command(write10(lba, 8))
	c.Write, c.EDTL = true, 4096
	if immediate {
		p.sendISER(&iscsi.ISERHeader{WriteValid: true}, c, nil, data)
	} else {
		buf, rem, _ := p.expose(4096, transport.RemoteRead)
		copy(buf.Bytes(), data)
		p.sendISER(&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}, c, nil, nil)
	}
	for len(l.entered) == 0 {
		synctest.Wait()
		p.wire().poll() // our side of an RDMA Read
	}
	<-l.entered
	return c.ITT
}

// Writes that a device lends are performed by the connection's owner, whichever way their data came.
func TestOwnerPerformsWrites(t *testing.T) {
	f := newTwinFixture(t)
	l := lend(f)
	p := f.dialISER(iscsi.CMPrivate(true))
	p.loginISER()
	p.ready()
	testReadWriteISER(t, p, true, false)
	if l.performed.Load() == 0 || l.queued.Load() != 0 {
		t.Errorf("%d writes performed by the owner, %d by others", l.performed.Load(), l.queued.Load())
	}
}

// Over TCP there is no owner who would.
func TestOverTCPNobodyPerformsWrites(t *testing.T) {
	f, dial := newPipeFixture(t)
	l := lend(f)
	p := dial()
	p.login()
	p.ready()
	data := pattern(512, 1)
	c := p.command(write10(0, 1))
	c.Write, c.EDTL = true, 512
	p.send(c, nil, data)
	if r := p.want(iscsi.OpSCSIResponse); r.b[3] != 0 || l.performed.Load() != 0 || l.queued.Load() != 1 {
		t.Errorf("% x: %d performed, %d queued", []byte(r.b), l.performed.Load(), l.queued.Load())
	}
}

// An owner that blocks in a write loses the connection to another goroutine, which may lose it in turn; each write is answered when
// it ends.
func TestAnOwnerThatBlocksIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTwinFixture(t)
		l := lend(f)
		p := f.dialISER(iscsi.CMPrivate(true))
		p.loginISER()
		p.ready()
		var blocked []uint32
		for i := range 3 {
			blocked = append(blocked, p.blocking(l, i*8, i != 1))
			began := time.Now()
			p.ready() // TEST UNIT READY, answered by the new owner
			if took := time.Since(began); took < owner.BlockTime/2 || took > 3*owner.BlockTime {
				t.Errorf("a command behind a write that blocks took %v, the limit is %v", took, owner.BlockTime)
			}
		}
		for range blocked {
			l.valve <- struct{}{}
		}
		ended := map[uint32]bool{}
		for range blocked {
			r := p.want(iscsi.OpSCSIResponse)
			ended[r.b.ITT()] = r.b[3] == 0
		}
		for _, itt := range blocked {
			if !ended[itt] {
				t.Errorf("no good status for the write with tag %d", itt)
			}
		}
		if got := p.readISER(8, 8, true); got[0] != 0xff {
			t.Error("what was written is not there")
		}
	})
}

// The connection ends while its owners are in writes that hang, the first or more of them, and more writes wait. While they hang, nothing
// of the connection is left but their commands: others use the units, and the server can close.
func TestAConnectionEndsWhileItsOwnerIsInAWrite(t *testing.T) {
	for name, wait := range map[string]time.Duration{"before a handoff": 0, "after it": 3 * owner.BlockTime} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newTwinFixture(t)
				l := lend(f)
				lu, g := f.unit("second")
				second := &lender{Device: g.Device, valve: l.valve, entered: l.entered}
				g.Device = second
				must(t, f.st.AddLUN(1, lu))
				p, other := f.dialISER(iscsi.CMPrivate(true)), f.dialISER(iscsi.CMPrivate(true))
				other.isid[5] = 2
				p.loginISER()
				p.ready()
				p.readyOn(1)
				// An RDMA Read that p does not answer, for it does not poll.
				c := p.command(write10(0, 8))
				c.LUN, c.Write, c.EDTL = scsi.EncodeLUN(1), true, 4096
				_, rem, _ := p.expose(4096, transport.RemoteRead)
				p.sendISER(&iscsi.ISERHeader{WriteValid: true, WriteSTag: rem.STag, WriteBase: rem.Off}, c, nil, nil)
				synctest.Wait()
				if g := f.rnic.Gauges(); g.ReadSinks != 1 {
					t.Fatalf("%d RDMA Reads under way", g.ReadSinks)
				}
				for i, w := range []struct {
					lun   uint16
					first byte
				}{{0, 0xff}, {0, 0xff}, {1, 1}} {
					c := p.command(write10(64+8*i, 1))
					c.LUN, c.Write, c.EDTL = scsi.EncodeLUN(w.lun), true, 512
					p.sendISER(&iscsi.ISERHeader{WriteValid: true}, c, nil, bytes.Repeat([]byte{w.first}, 512))
				}
				<-l.entered
				time.Sleep(wait)
				p.wire().close()
				time.Sleep(10 * owner.BlockTime)
				if g := f.rnic.Gauges(); g.ReadSinks != 0 || g.Connections != 1 {
					t.Errorf("%d connections, %d RDMA Reads under way", g.Connections, g.ReadSinks)
				}
				if n := second.performed.Load(); n != 1 {
					t.Errorf("%d writes of the unit that does not hang were performed", n)
				}
				other.loginISER()
				other.ready()
				other.readyOn(1)
				reset := &iscsi.TaskRequest{Immediate: true, Function: iscsi.LogicalUnitReset, LUN: scsi.EncodeLUN(1), ITT: 77, RefTag: iscsi.Reserved, CmdSN: other.cmdSN, ExpStatSN: other.statSN}
				other.send(reset, nil, nil)
				if r := other.want(iscsi.OpTaskResponse); r.b[2] != 0 {
					t.Errorf("the reset of the unit that does not hang: response %d", r.b[2])
				}
				// The other unit's reset says that no write of the lost session comes later, which is not so yet.
				reset.LUN, reset.ITT, reset.ExpStatSN = 0, 78, other.statSN
				other.send(reset, nil, nil)
				synctest.Wait()
				if other.wire().poll(); len(other.wire().in) != 0 {
					t.Error("a reset was answered while a write hangs")
				}
				closed := make(chan error, 1)
				go func() { closed <- f.srv.Close(context.Background()) }()
				select {
				case err := <-closed:
					if err == nil {
						t.Error("Close says nothing of a medium that hangs")
					}
				case <-time.After(time.Minute):
					t.Error("Close waits for a medium that hangs")
				}
				close(l.valve)
				synctest.Wait()
				if n := len(f.srv.Sessions()); n != 0 {
					t.Errorf("%d sessions", n)
				}
				// The fixture's end would find buffers, goroutines and commands that are left.
			})
		})
	}
}

// Responses wait for company while the owner has writes to perform, until they are half as many as the commands were.
func TestResponsesWaitForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTwinFixture(t)
		l := lend(f)
		p := f.dialISER(iscsi.CMPrivate(true))
		p.loginISER()
		p.ready()
		p.blocking(l, 0, true) // while it lasts the others come in, for one Poll
		const n = 4            // as many as the first window leaves
		for i := range n {
			c := p.command(write10(64+8*i, 8))
			c.Write, c.EDTL = true, 4096
			p.sendISER(&iscsi.ISERHeader{WriteValid: true}, c, nil, bytes.Repeat([]byte{0xff}, 4096))
		}
		var seen []int
		for range n + 1 {
			l.valve <- struct{}{} // one write ends; the next blocks
			for range 8 {
				synctest.Wait()
				p.wire().poll()
			}
			seen = append(seen, len(p.wire().in))
		}
		if want := []int{0, 2, 2, 4, 5}; !slices.Equal(seen, want) {
			t.Errorf("responses after each write: %v, want %v", seen, want)
		}
	})
}
