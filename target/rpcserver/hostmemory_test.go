package rpcserver

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// hostsDevice is a device whose connections come from the hosts that the test names.
type hostsDevice struct {
	transport.Device
	from *string
}

func (d hostsDevice) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := d.Device.Listen(ctx, addr)
	return hostsListener{l, d.from}, err
}

type hostsListener struct {
	transport.Listener
	from *string
}

func (l hostsListener) Accept(ctx context.Context) (transport.Request, error) {
	r, err := l.Listener.Accept(ctx)
	return hostsRequest{r, *l.from}, err
}

type hostsRequest struct {
	transport.Request
	from string
}

func (r hostsRequest) Peer() transport.Peer {
	p := r.Request.Peer()
	p.Remote = net.TCPAddrFromAddrPort(netip.MustParseAddrPort(r.from))
	return p
}

// serveHosts is serveFabric for clients of several hosts.
func serveHosts(t *testing.T, o Options) (s *Server, p *program, connect func(from string) *fabricClient, end func()) {
	from := ""
	made := newTwins
	newTwins = func() (here, there transport.Device) {
		here, there = made()
		return hostsDevice{here, &from}, there
	}
	defer func() { newTwins = made }()
	s, p, one, end := serveFabric(t, o)
	return s, p, func(host string) *fabricClient {
		from = host + ":700"
		c := one()
		c.call(procTrust)
		return c
	}, end
}

// offer sends a call whose data the client does not let the server read before it polls again.
func (c *fabricClient) offer(seg rpcrdma.Segment) {
	h := c.header()
	msg := c.msg(procEcho, 1)
	h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: seg}}
	c.sendOnly(append(h.Append(nil), msg...))
}

const littleFabric = 32 << 20 // registered memory, in these tests

// The connections of one host hold no more than half of the registered memory, with calls whose data it does not deliver and with replies, and the
// credits of more calls; another host's calls are executed. When the host goes on all of its calls are answered.
func TestOneHostDoesNotHoldAllRegisteredMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, connect, end := serveHosts(t, Options{RDMA: RDMAOptions{Memory: littleFabric, Credits: 16}})
		defer end()
		var bad []*fabricClient
		for range 4 {
			c := connect("10.0.0.9")
			seg := c.bind(0, 1<<20, transport.RemoteRead)
			for range 14 {
				c.offer(seg)
			}
			bad = append(bad, c)
		}
		synctest.Wait()
		used := s.bulk.pool.Used()
		if used > littleFabric*3/4 {
			t.Errorf("one host holds %d bytes of %d", used, littleFabric)
		}
		good := connect("10.0.0.1")
		for range 3 {
			h := good.header()
			h.AddWrite(good.bind(0, MaxPayload, transport.RemoteWrite))
			good.send(append(h.Append(nil), good.msg(procBulk, MaxPayload)...))
			if v, _ := good.value(good.last.rest); v != MaxPayload {
				t.Fatalf("%d bytes", v)
			}
			if xid := good.call(procEcho, rpcrdma.ReadSegment{Segment: good.bind(1<<20, 1<<20, transport.RemoteRead)}); good.got[xid] != 1 {
				t.Fatal("a call with data of another host is not executed")
			}
		}
		for range 20 { // a call may wait for one of another connection
			for _, c := range bad {
				c.poll()
			}
		}
		for i, c := range bad {
			if len(c.got) != int(c.xid) || c.ended {
				t.Errorf("connection %d: %d of %d calls are answered, ended %v", i, len(c.got), c.xid, c.ended)
			}
		}
		if h := s.hosts[netip.MustParseAddr("10.0.0.9")]; h.fabric.used.Load() > 4*(512<<10) || h.fabric.waiting.Load() != 0 {
			t.Errorf("the host has %d bytes when all is answered, %d connections wait", h.fabric.used.Load(), h.fabric.waiting.Load())
		}
	})
}

// A call that has fetched data does not wait for memory for its result with it: calls that do not need what they sent would keep one another, and their
// whole host, waiting for ever. Nor does the data of one that has been executed stay until there is memory for a long reply.
func TestWhatHoldsRoomOfAHostWaitsForNone(t *testing.T) {
	for _, long := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, _, connect, end := serveHosts(t, Options{RDMA: RDMAOptions{Memory: littleFabric, Credits: 16}})
			defer end()
			var all []*fabricClient
			for range 4 {
				c := connect("10.0.0.9")
				from, to := c.bind(0, 1<<20, transport.RemoteRead), c.bind(1<<20, 1<<20, transport.RemoteWrite)
				for range 14 {
					h := c.header()
					proc := uint32(procBulk)
					if h.AddWrite(to); long {
						h.Reset()
						h.XID, h.Credits, proc = c.xid, c.wants, procLong
						h.SetReply([]rpcrdma.Segment{to})
					}
					msg := c.msg(proc, 60<<10)
					h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: from}}
					c.sendOnly(append(h.Append(nil), msg...))
				}
				all = append(all, c)
			}
			synctest.Wait()
			for range 30 {
				for _, c := range all {
					c.poll()
				}
			}
			for i, c := range all {
				if len(c.got) != int(c.xid) || c.ended {
					t.Errorf("long %v, connection %d: %d of %d calls are answered, ended %v", long, i, len(c.got), c.xid, c.ended)
				}
			}
			if h := s.hosts[netip.MustParseAddr("10.0.0.9")]; h.fabric.used.Load() > 4*(512<<10) || h.fabric.waiting.Load() != 0 {
				t.Errorf("the host has %d bytes when all is answered, %d connections wait", h.fabric.used.Load(), h.fabric.waiting.Load())
			}
		})
	}
}

// Connections end while calls of theirs, and of others of their host, wait for its room: what they had goes to those.
func TestRoomOfAHostPassesFromConnectionsThatEnd(t *testing.T) {
	for _, what := range []string{"data", "a result", "a long reply"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, connect, end := serveHosts(t, Options{RDMA: RDMAOptions{Memory: littleFabric, Credits: 16}})
				defer end()
				good := connect("10.0.0.9")
				var bad []*fabricClient
				for range 3 {
					c := connect("10.0.0.9")
					seg := c.bind(0, 1<<20, transport.RemoteRead)
					for range 14 {
						c.offer(seg)
					}
					bad = append(bad, c)
					synctest.Wait()
				}
				h := good.header()
				switch what {
				case "data":
					msg := good.msg(procEcho, 1)
					h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: good.bind(0, 1<<20, transport.RemoteRead)}}
					good.send(append(h.Append(nil), msg...))
				case "a result":
					h.AddWrite(good.bind(0, MaxPayload, transport.RemoteWrite))
					good.send(append(h.Append(nil), good.msg(procBulk, MaxPayload)...))
				case "a long reply":
					h.SetReply([]rpcrdma.Segment{good.bind(0, 1<<20, transport.RemoteWrite)})
					good.send(append(h.Append(nil), good.msg(procLong, 1<<20-4096)...))
				}
				if good.got[good.xid] != 0 {
					t.Fatal("it waits for no room")
				}
				for _, c := range bad[1:] { // those that wait themselves
					_ = c.qp.Close(transport.Reason{})
				}
				synctest.Wait()
				_ = bad[0].qp.Close(transport.Reason{})
				good.poll()
				if good.got[good.xid] != 1 || good.ended {
					t.Errorf("%d replies, ended %v; %d bytes of the host's room are taken", good.got[good.xid], good.ended, s.hosts[netip.MustParseAddr("10.0.0.9")].fabric.used.Load())
				}
			})
		})
	}
}

// A client that answers a Read now and then moves, and holds the memory of the others for no longer than that of one call may be held.
func TestAReadThatIsAnsweredNowAndThenDoesNotHideTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, connect, end := serveHosts(t, Options{RDMA: RDMAOptions{Credits: 64}})
		defer end()
		clientReads = 1 // so that it answers one with each Poll
		defer func() { clientReads = 16 }()
		bad := connect("10.0.0.9")
		seg := bad.bind(0, 4096, transport.RemoteRead)
		for range 14 {
			bad.offer(seg)
		}
		var wcs [1]transport.WC
		begun := time.Now()
		for s.Stats().Connections == 1 && time.Since(begun) < 20*fabricTime {
			time.Sleep(fabricTime - watchTick)
			_, _ = bad.qp.Poll(wcs[:]) // its side of a Read goes on with each Poll
			synctest.Wait()
		}
		if lasted := time.Since(begun); lasted < moveTime || lasted > moveTime+2*fabricTime {
			t.Errorf("the connection was closed after %v", lasted)
		}
	})
}

// A message in a position-zero chunk is copied: no client has long ones fetched, whoever it is. Bulk data beside it comes in a chunk of its own.
func TestALongCallHasNoBulkData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveHosts(t, Options{})
		defer end()
		c := connect("10.0.0.9")
		for _, n := range []int{maxLongCall, maxLongCall + 4, MaxPayload} {
			h := c.header()
			h.Proc = rpcrdma.Nomsg
			copy(c.bulk(0, n).Bytes(), c.msg(procEcho, 77))
			h.Reads = []rpcrdma.ReadSegment{{Segment: c.bind(0, n, transport.RemoteRead)}}
			c.send(h.Append(nil))
			if n > maxLongCall {
				c.refused(rpcrdma.ErrChunk)
			} else if v, _ := c.value(c.last.rest); v != 77 {
				t.Errorf("%d bytes: %d", n, v)
			}
		}
		h := c.header()
		h.Proc = rpcrdma.Nomsg
		msg := c.msg(procEcho, 78)
		copy(c.bulk(0, len(msg)).Bytes(), msg)
		h.Reads = []rpcrdma.ReadSegment{{Segment: c.bind(0, len(msg), transport.RemoteRead)},
			{Position: uint32(len(msg)), Segment: c.bind(1<<20, MaxPayload, transport.RemoteRead)}}
		c.send(h.Append(nil))
		if v, _ := c.value(c.last.rest); v != 78 {
			t.Errorf("with bulk data: %d", v)
		}
	})
}

// What a call takes of its host's room is what the pool has less by it.
func TestTheRoomOfACallIsWhatItTakes(t *testing.T) {
	p := mem.NewPool(64 << 20)
	defer func() { _ = p.Close() }()
	q := p.Quota(32 << 20)
	defer q.Close()
	for _, n := range []int{1, 4096, 4097, 60 << 10, 70_000, 300_000, 1 << 20, 1<<20 + 4, 5<<20 + 1} {
		l, err := q.GetAll(n, nil)
		if err != nil {
			t.Fatal(err)
		}
		if q.Held() != mem.Capacity(n) {
			t.Errorf("%d bytes take %d, not %d", n, q.Held(), mem.Capacity(n))
		}
		releaseBufs(&l)
	}
}
