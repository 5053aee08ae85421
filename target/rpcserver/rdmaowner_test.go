package rpcserver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/transport"
)

// waits sends a call with data, which the owner of the connection executes itself, and which does not end.
func (c *fabricClient) waits(p *program) uint32 {
	c.t.Helper()
	xid := c.call(procWait, rpcrdma.ReadSegment{Segment: c.bind(int(c.xid)*4096, 4096, transport.RemoteRead)})
	select {
	case <-p.entered:
	default:
		c.t.Fatal("the call is not being executed")
	}
	return xid
}

// The owner of a connection that blocks in a call loses the connection to another goroutine, which may lose it in turn.
func TestAnOwnerThatBlocksIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.brief.Store(true)
		c := connect()
		c.granted(creditsPerStep)
		var waiting []uint32
		for i := range uint64(3) {
			waiting = append(waiting, c.waits(p))
			xid := c.call(procEcho)
			if c.got[xid] != 0 || s.stats.handoffs.Load() != i {
				t.Fatalf("%d replies at once, %d handoffs", c.got[xid], s.stats.handoffs.Load())
			}
			time.Sleep(2 * owner.BlockTime)
			c.poll()
			if c.got[xid] != 1 || s.stats.handoffs.Load() != i+1 {
				t.Fatalf("%d replies, %d handoffs after %v", c.got[xid], s.stats.handoffs.Load(), 2*owner.BlockTime)
			}
		}
		close(p.gate)
		c.poll()
		for _, xid := range waiting {
			if c.got[xid] != 1 {
				t.Errorf("%d replies to a call that has ended", c.got[xid])
			}
		}
		for range 10 {
			if xid := c.waits(p); c.got[xid] != 1 {
				t.Error("no reply to a call that did not block")
			}
		}
		time.Sleep(10 * owner.BlockTime)
		if n := s.stats.handoffs.Load(); n != 3 {
			t.Errorf("%d handoffs for 3 calls that blocked", n)
		}
	})
}

// A call that brings no data is the owner's to execute too where it hardly ever blocks, in its turn; and one that blocks all the same
// costs the owner its connection, not those behind it their answers.
func TestTheOwnerExecutesCallsWithoutDataThatHardlyEverBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.brief.Store(true)
		c := connect()
		c.granted(creditsPerStep)
		wait := c.call(procWait)
		<-p.entered
		if n := s.Stats().Workers; n != 0 {
			t.Errorf("%d workers", n)
		}
		if xid := c.call(procEcho); c.got[xid] != 0 {
			t.Error("a call is answered while the owner executes another")
		}
		time.Sleep(2 * owner.BlockTime)
		c.poll()
		if c.got[c.xid] != 1 || c.got[wait] != 0 || s.stats.handoffs.Load() != 1 {
			t.Errorf("%d replies, %d handoffs after %v", c.got[c.xid], s.stats.handoffs.Load(), 2*owner.BlockTime)
		}
		close(p.gate)
		c.poll()
		for range 10 {
			if xid := c.call(procWait); c.got[xid] != 1 {
				t.Error("no reply to a call that did not block")
			}
		}
		if c.got[wait] != 1 || s.Stats().Workers != 0 {
			t.Errorf("%d replies to the call that blocked, %d workers", c.got[wait], s.Stats().Workers)
		}
	})
}

// The receives of replies that leave together are posted together, before them.
func TestReceivesOfRepliesThatLeaveTogetherArePostedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made := newTwins
		var posts, receives []int
		newTwins = func() (transport.Device, transport.Device) {
			here, there := made()
			return &countingDevice{here, func(_ transport.QP, wrs []transport.WR) {
				posts = append(posts, len(wrs))
			}, func(rs []transport.Recv) { receives = append(receives, len(rs)) }}, there
		}
		defer func() { newTwins = made }()
		_, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.brief.Store(true)
		c := connect()
		c.granted(creditsPerStep)
		first := c.call(procWait) // while it lasts the others come in, for one Poll
		<-p.entered
		posts, receives = nil, nil
		for range 4 {
			h := c.header()
			c.sendOnly(append(h.Append(nil), c.msg(procEcho, c.xid)...))
		}
		p.gate <- struct{}{}
		c.poll()
		if c.got[first] != 1 || len(posts) > 2 || len(receives) != len(posts) {
			t.Errorf("%d replies to the first; replies posted %v at a time, receives %v", c.got[first], posts, receives)
		}
		for xid := first; xid <= c.xid; xid++ {
			if c.got[xid] != 1 {
				t.Errorf("call %d: %d replies", xid, c.got[xid])
			}
		}
	})
}

// countingDevice is a device whose queue pairs say what is posted to them.
type countingDevice struct {
	transport.Device
	posted   func(transport.QP, []transport.WR)
	received func([]transport.Recv)
}

func (d *countingDevice) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	if err != nil {
		return nil, err
	}
	return countingQP{q, d}, nil
}

func (d *countingDevice) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := d.Device.Listen(ctx, addr)
	return countingListener{l}, err
}

type countingListener struct{ transport.Listener }

func (l countingListener) Accept(ctx context.Context) (transport.Request, error) {
	r, err := l.Listener.Accept(ctx)
	return countingRequest{r}, err
}

type countingRequest struct{ transport.Request }

func (r countingRequest) Accept(ctx context.Context, q transport.QP, p transport.ConnParams) error {
	return r.Request.Accept(ctx, q.(countingQP).QP, p)
}

type countingQP struct {
	transport.QP
	d *countingDevice
}

func (q countingQP) Post(wrs []transport.WR) (int, error) {
	q.d.posted(q, wrs)
	return q.QP.Post(wrs)
}

func (q countingQP) PostRecv(rs []transport.Recv) (int, error) {
	q.d.received(rs)
	return q.QP.PostRecv(rs)
}

// Replies wait for company while there are calls to execute, until they are half as many as the calls were, or a call blocks.
func TestRepliesWaitForCompany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.brief.Store(true)
		c := connect()
		c.granted(creditsPerStep)
		c.call(procTrust) // or workers would ask the program about each call, side by side
		var xids []uint32
		for i := range 4 {
			h := c.header()
			msg := c.msg(procWait, c.xid)
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(msg)), Segment: c.bind(i*4096, 4096, transport.RemoteRead)})
			c.sendOnly(append(h.Append(nil), msg...))
			xids = append(xids, c.xid)
		}
		c.poll()
		for i, want := range [][4]int{{0, 0, 0, 0}, {1, 1, 0, 0}, {1, 1, 0, 0}} {
			p.gate <- struct{}{} // ends one call; the next blocks
			c.poll()
			if got := [4]int{c.got[xids[0]], c.got[xids[1]], c.got[xids[2]], c.got[xids[3]]}; got != want || s.stats.handoffs.Load() != 0 {
				t.Errorf("replies %v after %d calls, want %v; %d handoffs", got, i+1, want, s.stats.handoffs.Load())
			}
		}
		time.Sleep(2 * owner.BlockTime)
		c.poll()
		if c.got[xids[2]] != 1 || s.stats.handoffs.Load() != 1 {
			t.Errorf("%d replies to a call before one that blocks, %d handoffs", c.got[xids[2]], s.stats.handoffs.Load())
		}
		close(p.gate)
		c.poll()
		if c.got[xids[3]] != 1 {
			t.Errorf("%d replies to the last call, behind which nothing comes", c.got[xids[3]])
		}
	})
}

// gone is how many connections know that their clients have gone.
func (s *Server) gone() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.closers {
		if r, is := c.(*rdmaConn); is && r.gone() {
			n++
		}
	}
	return n
}

// The connection ends while its first owner is in a call, whether another goroutine has it by then or none. While the call hangs, nothing
// of the connection is under way any more, and those who ask are told that the client has gone.
func TestAConnectionEndsWhileItsOwnerIsInACall(t *testing.T) {
	for name, wait := range map[string]time.Duration{"before a handoff": 0, "after it": 2 * owner.BlockTime} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p, connect, end := serveFabric(t, Options{})
				p.brief.Store(true)
				c, other := connect(), connect()
				c.waits(p)
				// More calls whose data comes and which nobody has begun.
				for range 3 {
					c.call(procWait, rpcrdma.ReadSegment{Segment: c.bind(1<<20+int(c.xid)*4096, 4096, transport.RemoteRead)})
				}
				time.Sleep(wait)
				if err := c.qp.Close(transport.Reason{}); err != nil {
					t.Error(err)
				}
				time.Sleep(10 * owner.BlockTime)
				if n := s.gone(); n != 1 {
					t.Errorf("%d connections know that their clients have gone, want 1", n)
				}
				other.granted(creditsPerStep)
				close(p.gate)
				synctest.Wait()
				other.granted(creditsPerStep)
				end() // would find buffers, goroutines and calls that are left
			})
		})
	}
}

// With every call sent to a worker there are no handoffs.
func TestNoInlineLeavesTheOwnerFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{NoInline: true})
		defer end()
		p.brief.Store(true)
		c := connect()
		c.granted(creditsPerStep)
		wait := c.waits(p)
		if xid := c.call(procEcho); c.got[xid] != 1 || c.got[wait] != 0 {
			t.Error("a call waits for another's worker")
		}
		close(p.gate)
		c.poll()
		if c.got[wait] != 1 || s.stats.handoffs.Load() != 0 {
			t.Errorf("%d replies, %d handoffs", c.got[wait], s.stats.handoffs.Load())
		}
	})
}
