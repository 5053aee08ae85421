package rpcserver

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/transport"
)

// hold sends n calls that stay in the program.
func (c *fabricClient) hold(n int) {
	c.t.Helper()
	for range n {
		c.call(procWait)
	}
}

// open lets all held calls go, and gives the program a new gate.
func (p *program) open(c *fabricClient) {
	synctest.Wait()
	close(p.gate)
	synctest.Wait()
	p.gate = make(chan struct{})
	c.poll()
}

func (c *fabricClient) granted(want uint32) {
	c.t.Helper()
	c.call(procEcho)
	if c.grant != want || c.ended {
		c.t.Fatalf("%d credits granted, want %d (ended %v)", c.grant, want, c.ended)
	}
}

// "The requested and granted credit values MAY be adjusted to match the needs or policies in effect on either peer."
// (RFC 8166 section 3.3.1)
func TestCreditsOpenWithUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: 40}})
		defer end()
		c := connect()
		c.granted(16)
		c.granted(16) // one at a time is no use
		c.hold(12)
		c.granted(32)
		c.hold(13)
		c.granted(40) // and no more than configured
		c.hold(15)
		c.granted(40)
		p.open(c)
		if len(c.got) != int(c.xid) {
			t.Errorf("%d replies to %d calls", len(c.got), c.xid)
		}
		if n := s.Stats().CreditsOpened; n != 32 {
			t.Errorf("%d credits opened", n)
		}
	})
}

// "The number of allowed new requests the Requester may send is then the lower of the current requested and granted
// credit values" (RFC 8166 section 3.3.1): more than asked for is not granted, and nought is not granted at all.
func TestCreditsAreNoMoreThanAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		c.wants = 5
		c.granted(5)
		c.wants = 0
		c.granted(1)
		c.wants = 20
		c.granted(16)
		c.hold(12)
		c.granted(20)
		p.open(c)
	})
}

// Credits that are not used are taken back, and then there are no receives behind them any more: who sends more than was
// granted, and the spare ones, loses the connection. One who stays within them does not.
func TestCreditsCloseWithIdleness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: 48}})
		defer end()
		c := connect()
		c.granted(16)
		c.hold(12)
		c.hold(12)
		c.granted(48)
		p.open(c)
		before := s.Stats()
		for _, want := range []uint32{48, 32, 16, 16} { // the first time they had been in use
			time.Sleep(creditIdle + time.Second)
			c.granted(want)
		}
		if n := s.Stats().CreditsClosed - before.CreditsClosed; n != 32 {
			t.Errorf("%d credits closed", n)
		}
		c.wants = 16    // or they would open again
		for range 200 { // receives of closed steps are used up one after another
			c.granted(16)
		}
		c.hold(16)
		if c.ended {
			t.Fatal("a client within its credits lost its connection")
		}
		p.open(c)
		c.hold(16 + spareRecvs)
		if c.ended {
			t.Fatal("the spare receives are not there")
		}
		c.hold(1)
		if !c.ended {
			t.Error("a call beyond the grant was received: the receives of closed credits are still posted")
		}
		p.open(c)
	})
}

// Bulk data that waits for memory closes credits; when there is memory they open again, and everything is answered.
func TestCreditsCloseUnderMemoryPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The pool's least: one slab of each size of buffer.
		_, p, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: 64, Memory: 1}})
		defer end()
		c, other := connect(), connect()
		c.granted(16)
		c.hold(13)
		c.granted(32)
		seg := c.bind(0, 1<<20, transport.RemoteRead)
		// Held in the program with a megabyte each, until there is no more.
		var bulk []uint32
		for range 16 {
			bulk = append(bulk, c.call(procWait, rpcrdma.ReadSegment{Segment: seg}))
		}
		c.granted(starvedCredits)
		if n := len(c.got); n > int(c.xid)-13 {
			t.Fatalf("%d replies of %d: nothing waits", n, c.xid)
		}
		other.granted(16) // another connection is not punished
		// Calls go on one after another as others give memory back.
		for round := 0; round < 5000 && len(c.got) < int(c.xid); round++ {
			p.open(c)
		}
		for _, x := range bulk {
			if c.got[x] != 1 {
				t.Errorf("call %d has %d replies", x, c.got[x])
			}
		}
		c.call(procEcho)
		if c.grant < 16 || c.ended {
			t.Errorf("%d credits after the pressure", c.grant)
		}
	})
}

// Two connections that give memory back under their own locks, while the other waits for it, do not lock each other out.
func TestMemoryIsHandedFromConnectionToConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: 64, Memory: 1}})
		defer end()
		cs := []*fabricClient{connect(), connect(), connect()}
		for _, c := range cs {
			seg := c.bind(0, 1<<20, transport.RemoteRead)
			for range 12 {
				c.call(procWait, rpcrdma.ReadSegment{Segment: seg})
			}
		}
		waiting := func(c *fabricClient) bool { return len(c.got) < 12 && !c.ended }
		for round := 0; round < 5000 && slices.ContainsFunc(cs, waiting); round++ {
			for _, c := range cs { // each polls: its side of an RDMA Read goes on then
				p.open(c)
			}
		}
		for i, c := range cs {
			if len(c.got) != 12 || c.ended {
				t.Errorf("client %d: %d replies of 12", i, len(c.got))
			}
		}
	})
}

// A message that waits for a slot gets the one of a call that ends without a reply, too.
func TestAHeldMessageTakesTheSlotOfACallWithoutAReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.drops.Store(true)
		c := connect()
		c.granted(creditsPerStep)
		c.waits(p)
		conn := s.onlyConn(t)
		// As if all other slots were of replies that have left, and whose completions are to come.
		conn.mu.Lock()
		conn.caps.InOrder, conn.idle, conn.sending = true, nil, conn.sending+1
		conn.mu.Unlock()
		xid := c.call(procEcho)
		conn.mu.Lock()
		held := len(conn.held)
		conn.sending-- // they have come
		conn.mu.Unlock()
		if held != 1 || c.got[xid] != 0 {
			t.Errorf("%d messages are held, %d replies", held, c.got[xid])
		}
		close(p.gate)
		c.poll()
		if c.got[xid] != 1 {
			t.Errorf("%d replies to a call that was held", c.got[xid])
		}
	})
}

func (s *Server) onlyConn(t *testing.T) *rdmaConn {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		for c := range h.conns {
			if r, is := c.(*rdmaConn); is {
				return r
			}
		}
	}
	t.Fatal("there is no connection")
	return nil
}
