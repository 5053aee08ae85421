package rpc

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/mem"
	"github.com/sluice-storage/sluice/internal/rpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// fabricClient is a requester that counts nothing: it sends what the test says, whatever it was granted.
type fabricClient struct {
	t     *testing.T
	dev   transport.Device
	qp    transport.QP
	slab  *mem.Slab
	xid   uint32
	wants uint32
	grant uint32         // as the last reply said
	got   map[uint32]int // replies by XID
	errs  map[uint32]uint32
	ended bool
}

const (
	clientInline = 4 << 10
	clientRecvs  = 200
	bulkAt       = (clientRecvs + 64) * clientInline
)

// serveFabric serves the program on a twin until the test is over, and returns a way to connect. It is made inside the
// bubble and ends in it.
func serveFabric(t *testing.T, o Options) (s *Server, p *program, connect func() *fabricClient, end func()) {
	t.Helper()
	here, there := transporttest.Twin()
	p = &program{gate: make(chan struct{}), entered: make(chan struct{}, 1000)}
	s = NewServer(o, p)
	l, err := here.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeRDMA(here, l) }()
	var clients []*fabricClient
	connect = func() *fabricClient {
		c := newFabricClient(t, there, l.Addr().String())
		clients = append(clients, c)
		return c
	}
	return s, p, connect, func() {
		for _, c := range clients {
			c.close()
		}
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, ErrServerClosed) {
			t.Error(err) // a buffer that was not given back shows here
		}
		for _, d := range []transport.Device{here, there} {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

func newFabricClient(t *testing.T, dev transport.Device, addr string) *fabricClient {
	t.Helper()
	c := &fabricClient{t: t, dev: dev, wants: 128, got: make(map[uint32]int), errs: make(map[uint32]uint32)}
	var err error
	if c.slab, err = mem.NewSlab(bulkAt + 4<<20); err != nil {
		t.Fatal(err)
	}
	if err := dev.Register(c.slab); err != nil {
		t.Fatal(err)
	}
	if c.qp, err = dev.NewQP(transport.QPOptions{Sends: 256, Recvs: clientRecvs}); err != nil {
		t.Fatal(err)
	}
	for i := range clientRecvs {
		if _, err := c.qp.PostRecv([]transport.Recv{{Token: uint64(i), Buf: mem.Span{Slab: c.slab, Off: i * clientInline, Len: clientInline}}}); err != nil {
			t.Fatal(err)
		}
	}
	priv := rpcrdma.Private{SendSize: clientInline, RecvSize: clientInline}
	if _, err := dev.Dial(t.Context(), addr, c.qp, transport.ConnParams{Private: priv.Append(nil), ReadsIn: 16}); err != nil {
		t.Fatal(err)
	}
	return c
}

// bind exposes n bytes for reading.
func (c *fabricClient) bind(n int) rpcrdma.Segment {
	c.t.Helper()
	w, err := c.qp.NewWindow()
	if err != nil {
		c.t.Fatal(err)
	}
	wr := transport.WR{Op: transport.OpBind, Local: []mem.Span{{Slab: c.slab, Off: bulkAt, Len: n}}, Window: w, Access: transport.RemoteRead}
	if _, err := c.qp.Post([]transport.WR{wr}); err != nil {
		c.t.Fatal(err)
	}
	return rpcrdma.Segment{Handle: w.Remote().STag, Off: w.Remote().Off, Len: uint32(n)}
}

// call sends a call without waiting for anything.
func (c *fabricClient) call(proc uint32, reads ...rpcrdma.ReadSegment) uint32 {
	c.t.Helper()
	c.xid++
	h := rpcrdma.Header{}
	h.Reset()
	h.XID, h.Credits, h.Reads = c.xid, c.wants, reads
	rc := rpc.Call{XID: c.xid, Prog: 400000, Vers: 1, Proc: proc}
	msg := xdr.AppendUint32(rc.Append(nil), c.xid)
	for i := range h.Reads {
		h.Reads[i].Position = uint32(len(msg))
	}
	b := append(h.Append(nil), msg...)
	out := mem.Span{Slab: c.slab, Off: (clientRecvs + int(c.xid%64)) * clientInline, Len: len(b)}
	copy(out.Bytes(), b)
	if _, err := c.qp.Post([]transport.WR{{Op: transport.OpSend, Token: 1 << 40, Local: []mem.Span{out}}}); err != nil {
		c.ended = true
	}
	c.poll()
	return c.xid
}

// poll takes what is there, after everybody else has come to rest.
func (c *fabricClient) poll() {
	c.t.Helper()
	var wcs [64]transport.WC
	for {
		synctest.Wait()
		n, err := c.qp.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if wc.Err != nil {
				c.ended = true
				continue
			}
			if wc.Op != transport.OpRecv {
				continue
			}
			b := mem.Span{Slab: c.slab, Off: int(wc.Token) * clientInline, Len: clientInline}
			var r xdr.Reader
			var h rpcrdma.Header
			r.Reset(b.Bytes()[:wc.Len])
			if err := h.Parse(&r); err != nil {
				c.t.Fatal(err)
			}
			c.grant = h.Credits
			c.got[h.XID]++
			if h.Proc == rpcrdma.Error {
				c.errs[h.XID] = h.ErrCode
			}
			if _, err := c.qp.PostRecv([]transport.Recv{{Token: wc.Token, Buf: b}}); err != nil {
				c.ended = true
			}
		}
		if err != nil {
			c.ended = true
		}
		if n == 0 {
			return
		}
	}
}

func (c *fabricClient) close() {
	_ = c.qp.Close(transport.Reason{})
	var wcs [64]transport.WC
	for {
		n, err := c.qp.Poll(wcs[:])
		if n == 0 && (err != nil || c.qp.Wait(context.Background()) != nil) {
			break
		}
	}
	if err := c.slab.Close(); err != nil {
		c.t.Error(err)
	}
}

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
		if n := s.Counters()["credits_opened"]; n != 32 {
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
		before := s.Counters()
		for _, want := range []uint32{48, 32, 16, 16} { // the first time they had been in use
			time.Sleep(creditIdle + time.Second)
			c.granted(want)
		}
		if n := s.Counters()["credits_closed"] - before["credits_closed"]; n != 32 {
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
		seg := c.bind(1 << 20)
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
			seg := c.bind(1 << 20)
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
