package rpcserver

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// The model of an RPC-over-RDMA connection: each call that was sent within the credits is answered once, with its own result, whatever else happens:
// memory that is refused or held by others of the host, calls that block their owner, Reads and replies that a client lets lie, connections that end.
// Illegal moves of calls and slots panic, and buffers that are not given back show when the server ends.

const (
	stormRegion  = 128 << 10 // a call's memory at the client, bytes
	stormRegions = 24
)

// stormCall is a call that was sent.
type stormCall struct {
	proc   uint32
	n      uint32 // bytes of result
	region int    // of the client's memory, -1 for none
	data   bool   // it has fetched some
	also   int    // of it, for data that the call does not need, -1 for none
	chunk  bool   // its result goes to a write chunk
}

type stormClient struct {
	*fabricClient
	calls map[uint32]stormCall
	free  []int                            // regions
	segs  [stormRegions][2]rpcrdma.Segment // for Reads, for Writes
	gone  bool
}

// storm is one run.
type storm struct {
	t       *testing.T
	rnd     *rand.Rand
	s       *Server
	p       *program
	denials *atomic.Int32
	connect func() *fabricClient
	clients []*stormClient
	seen    map[string]int
}

func (w *storm) add() {
	c := &stormClient{fabricClient: w.connect(), calls: make(map[uint32]stormCall)}
	c.all = make(map[uint32]fabricReply)
	c.grant = creditsPerStep
	for i := range stormRegions {
		c.segs[i] = [2]rpcrdma.Segment{c.bind(i*stormRegion, stormRegion, transport.RemoteRead), c.bind(i*stormRegion, stormRegion, transport.RemoteWrite)}
		c.free = append(c.free, i)
	}
	w.clients = append(w.clients, c)
}

// call sends one, if the client has a credit and memory for it.
func (w *storm) call(c *stormClient) {
	if len(c.calls) >= int(c.grant) || len(c.free) == 0 {
		return
	}
	x := stormCall{region: -1, also: -1}
	h := c.header()
	take := func() int {
		x.region, c.free = c.free[len(c.free)-1], c.free[:len(c.free)-1]
		return x.region
	}
	x.proc = []uint32{procEcho, procTrust, procWait, procBulk, procBulk, procList, procCount}[w.rnd.IntN(7)]
	arg := c.xid
	switch x.proc {
	case procBulk, procList:
		arg = uint32(w.rnd.IntN(stormRegion - 4096))
		if w.rnd.IntN(4) == 0 {
			arg = uint32(w.rnd.IntN(1000)) // inline
		} else if seg := c.segs[take()][1]; x.proc == procBulk && w.rnd.IntN(2) == 0 {
			x.chunk = true
			h.AddWrite(seg)
		} else {
			h.SetReply([]rpcrdma.Segment{seg})
		}
		x.n = arg
	}
	msg := c.msg(x.proc, arg)
	if x.region >= 0 && len(c.free) > 0 && w.rnd.IntN(4) == 0 {
		x.data, x.also, c.free = true, c.free[0], c.free[1:]
		h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: c.segs[x.also][0]}}
	}
	if x.region < 0 {
		switch w.rnd.IntN(4) {
		case 0, 1: // data in a chunk of its own
			x.data = true
			seg := c.segs[take()][0]
			seg.Len = uint32(1 + w.rnd.IntN(stormRegion))
			h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: seg}}
		case 2: // the message in a chunk
			at := take()
			seg := c.segs[at][0]
			seg.Len = uint32(len(msg))
			copy(c.bulk(at*stormRegion, len(msg)).Bytes(), msg)
			h.Reads, h.Proc, msg = []rpcrdma.ReadSegment{{Segment: seg}}, rpcrdma.Nomsg, nil
		}
	}
	c.calls[c.xid] = x
	c.sendOnly(append(h.Append(nil), msg...))
}

// send sends a call of a word, with data or without.
func (w *storm) send(c *stormClient, proc uint32, data bool) {
	if len(c.calls) >= int(c.grant) || len(c.free) == 0 {
		return
	}
	x := stormCall{proc: proc, region: -1, also: -1}
	h := c.header()
	msg := c.msg(proc, c.xid)
	if data {
		x.region, c.free = c.free[0], c.free[1:]
		h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: c.segs[x.region][0]}}
	}
	c.calls[c.xid] = x
	c.sendOnly(append(h.Append(nil), msg...))
}

// take looks at the replies that have come.
func (w *storm) take(c *stormClient) {
	c.poll()
	for xid, r := range c.all {
		delete(c.all, xid)
		x, sent := c.calls[xid]
		if !sent || c.got[xid] != 1 {
			w.t.Fatalf("%d replies to call %d, sent %v", c.got[xid], xid, sent)
		}
		delete(c.calls, xid)
		msg := r.rest
		if r.h.HasReply {
			msg = bytes.Clone(c.bulk(x.region*stormRegion, int(rpcrdma.Total(r.h.Reply))).Bytes())
		}
		if x.region >= 0 {
			defer func() { c.free = append(c.free, x.region) }()
		}
		if x.also >= 0 {
			defer func() { c.free = append(c.free, x.also) }()
		}
		rd := xdr.NewReader(msg)
		if x.data && x.proc == procBulk && len(msg) == oncrpc.ReplyLen {
			w.seen["refused with data"]++
			continue // there was no memory for its result
		}
		if id, err := oncrpc.ParseReply(&rd); err != nil || id != xid || r.h.Proc == rpcrdma.Error {
			w.t.Fatalf("call %d (%+v) is answered by %+v: %v", xid, x, r.h, err)
		}
		v := rd.Uint32()
		switch x.proc {
		case procBulk, procList:
			data := rd.Rest()
			if x.chunk {
				data = c.bulk(x.region*stormRegion, int(rpcrdma.Total(r.h.Segments(r.h.Writes[0])))).Bytes()
			}
			if v != x.n || len(data) < int(x.n) || len(data) > int(x.n)+3 {
				w.t.Fatalf("call %d: %d and %d bytes of %d", xid, v, len(data), x.n)
			}
			for i, b := range data[:x.n] {
				if x.proc == procBulk && b != byte(i) {
					w.t.Fatalf("call %d: byte %d of %d is %d", xid, i, x.n, b)
				}
			}
		case procCount:
		default:
			if v != xid {
				w.t.Fatalf("call %d has the result of %d", xid, v)
			}
		}
	}
	if c.ended && !c.gone {
		w.t.Fatal("a connection has ended whose client has broken no rule")
	}
}

// look notes what connections are in, before one of them ends if ending is set.
func (w *storm) look(ending bool) {
	synctest.Wait()
	note := func(what string, n int) {
		if n > 0 {
			w.seen[what]++
		}
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for _, h := range w.s.hosts {
		note("the host's room is waited for", int(h.fabric.waiting.Load()))
		for k := range h.conns {
			c := k.(*rdmaConn)
			c.mu.Lock()
			prefix := ""
			if ending {
				prefix = "ends with calls "
			}
			note(prefix+"stalled", len(c.stalled))
			note(prefix+"unsent", len(c.unsent))
			note(prefix+"later", len(c.later))
			note("held", len(c.held))
			for i := range c.slots {
				note(slots.Name(c.slots[i].state), 1)
			}
			c.mu.Unlock()
		}
	}
}

func (w *storm) run(steps int, adapter bool) {
	for range 3 {
		w.add()
	}
	hold := func(c *stormClient, on bool) {
		if h, is := c.qp.(interface{ HoldReads(bool) }); is && adapter {
			h.HoldReads(on)
		}
	}
	for range steps {
		c := w.clients[w.rnd.IntN(len(w.clients))]
		switch k := w.rnd.IntN(40); {
		case c.gone:
		case k < 22:
			w.call(c)
		case k < 28:
			w.take(c)
		case k < 31:
			w.denials.Store(int32(w.rnd.IntN(12)))
		case k < 33:
			time.Sleep(time.Duration(w.rnd.Int64N(int64(3 * owner.BlockTime))))
		case k < 35:
			w.p.open(c.fabricClient)
		case k < 37:
			hold(c, w.rnd.IntN(2) == 0)
		case k == 38 && adapter && w.rnd.IntN(3) == 0: // replies complete behind a Read that is delayed, until there are slots for no more
			w.p.open(c.fabricClient)
			w.take(c)
			hold(c, true)
			w.send(c, procEcho, true)
			for range 6 * creditsPerStep {
				w.send(c, procEcho, false)
				w.send(c, procEcho, false)
				w.take(c)
			}
			w.look(false)
		case k == 37 && len(w.clients) < 8:
			w.look(true)
			c.gone = true
			_ = c.qp.Close(transport.Reason{})
			w.add()
		default:
			w.look(false)
		}
		for len(w.p.entered) > 500 {
			<-w.p.entered
		}
	}
	// Everything comes to an end when nothing is refused, held or kept any more.
	w.denials.Store(0)
	close(w.p.gate)
	for range 200 {
		left := 0
		for _, c := range w.clients {
			if !c.gone {
				hold(c, false)
				w.take(c)
				left += len(c.calls)
			}
		}
		if left == 0 {
			break
		}
		time.Sleep(owner.BlockTime)
	}
	live := 0
	for i, c := range w.clients {
		if c.gone {
			continue
		}
		live++
		if len(c.calls) > 0 {
			w.t.Errorf("client %d: %d calls are never answered: %+v", i, len(c.calls), c.calls)
		}
	}
	synctest.Wait()
	if n := w.s.Stats(); n.Connections != live || n.Active != 0 {
		w.t.Errorf("%d connections of %d, %d calls under way", n.Connections, live, n.Active)
	}
}

func TestEachCallIsAnsweredOnceWhateverHappens(t *testing.T) {
	seen := make(map[string]int)
	seeds := uint64(80)
	if testing.Short() {
		seeds = 40
	}
	made := newTwins
	defer func() { newTwins = made }()
	for seed := range seeds {
		adapter := seed%2 == 1
		newTwins = made
		if adapter {
			newTwins = func() (transport.Device, transport.Device) { return transporttest.AdapterTwin(transporttest.Adapter{}) }
		}
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var denials atomic.Int32
				mem.SetDrought(&mem.Drought{Deny: func(int) bool { return denials.Add(-1) >= 0 }})
				defer mem.SetDrought(nil)
				s, p, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: 40, Memory: littleFabric}})
				defer end()
				p.brief.Store(true)
				s.mu.Lock()
				s.hostFabric = 3 << 20 // little, for the clients are one host
				s.mu.Unlock()
				w := &storm{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), s: s, p: p, denials: &denials, connect: connect, seen: seen}
				w.run(600, adapter)
			})
		})
		if t.Failed() {
			return
		}
	}
	t.Log(seen)
	for _, what := range []string{"stalled", "unsent", "later", "held", "reading", "placed", "replying", "the host's room is waited for",
		"refused with data", "ends with calls stalled", "ends with calls later", "ends with calls unsent"} {
		if seen[what] == 0 {
			t.Errorf("nothing was ever %q: the test does not reach it", what)
		}
	}
}
