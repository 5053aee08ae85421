package rpcserver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// fabricClient is a requester that counts nothing: it sends what the test says, whatever it was granted.
type fabricClient struct {
	t     *testing.T
	dev   transport.Device
	qp    transport.QP
	slab  *mem.Slab
	peer  transport.Peer
	addr  string
	xid   uint32
	wants uint32
	grant uint32         // as the last reply said
	got   map[uint32]int // replies by XID
	last  fabricReply
	all   map[uint32]fabricReply // by XID, where it is there
	ended bool
}

// fabricReply is a reply: its transport header, what follows inline, and the STag that it invalidated.
type fabricReply struct {
	h    rpcrdma.Header
	rest []byte
	inv  uint32
}

const (
	clientInline = 4 << 10
	clientRecvs  = 200
	bulkAt       = (clientRecvs + 64) * clientInline
)

// clientReads is how many Reads a client lets the server have outstanding.
var clientReads = 16

// newTwins makes the two ends' devices.
var newTwins = transporttest.Twin

// serveFabric serves the program on a twin until the test is over, and returns a way to connect. It is made inside the
// bubble and ends in it.
func serveFabric(t *testing.T, o Options) (s *Server, p *program, connect func() *fabricClient, end func()) {
	t.Helper()
	priv := rpcrdma.Private{SendSize: clientInline, RecvSize: clientInline}
	return serveFabricWith(t, o, priv.Append(nil))
}

// serveFabricWith is serveFabric for clients that say priv as they connect.
func serveFabricWith(t *testing.T, o Options, priv []byte) (s *Server, p *program, connect func() *fabricClient, end func()) {
	t.Helper()
	here, there := newTwins()
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
		c := newFabricClient(t, there, l.Addr().String(), priv)
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

func newFabricClient(t *testing.T, dev transport.Device, addr string, priv []byte) *fabricClient {
	t.Helper()
	c := &fabricClient{t: t, dev: dev, addr: addr, wants: 128, got: make(map[uint32]int)}
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
	peer, err := dev.Dial(t.Context(), addr, c.qp, transport.ConnParams{Private: priv, ReadsIn: clientReads})
	if err != nil {
		t.Fatal(err)
	}
	c.peer = peer
	return c
}

// bind exposes memory of the client's.
func (c *fabricClient) bind(at, n int, a transport.Access) rpcrdma.Segment {
	c.t.Helper()
	w, err := c.qp.NewWindow()
	if err != nil {
		c.t.Fatal(err)
	}
	wr := transport.WR{Op: transport.OpBind, Local: []mem.Span{c.bulk(at, n)}, Window: w, Access: a}
	if _, err := c.qp.Post([]transport.WR{wr}); err != nil {
		c.t.Fatal(err)
	}
	return rpcrdma.Segment{Handle: w.Remote().STag, Off: w.Remote().Off, Len: uint32(n)}
}

func (c *fabricClient) bulk(at, n int) mem.Span {
	return mem.Span{Slab: c.slab, Off: bulkAt + at, Len: n}
}

// header begins a message.
func (c *fabricClient) header() *rpcrdma.Header {
	c.xid++
	h := &rpcrdma.Header{}
	h.Reset()
	h.XID, h.Credits = c.xid, c.wants
	return h
}

// msg is the RPC message of the current XID.
func (c *fabricClient) msg(proc, arg uint32) []byte {
	rc := oncrpc.Call{XID: c.xid, Prog: 400000, Vers: 1, Proc: proc}
	return xdr.AppendUint32(rc.Append(nil), arg)
}

// send sends a message without waiting for anything but that everybody comes to rest.
func (c *fabricClient) send(b []byte) {
	c.t.Helper()
	c.sendOnly(b)
	c.poll()
}

func (c *fabricClient) sendOnly(b []byte) {
	out := mem.Span{Slab: c.slab, Off: (clientRecvs + int(c.xid%64)) * clientInline, Len: len(b)}
	copy(out.Bytes(), b)
	if _, err := c.qp.Post([]transport.WR{{Op: transport.OpSend, Flags: transport.Signaled, Token: 1 << 40, Local: []mem.Span{out}}}); err != nil {
		c.ended = true
	}
}

// call sends a call. Read segments without a position get the one after the message.
func (c *fabricClient) call(proc uint32, reads ...rpcrdma.ReadSegment) uint32 {
	c.t.Helper()
	h := c.header()
	msg := c.msg(proc, c.xid)
	for _, r := range reads {
		r.Position = uint32(len(msg))
		h.Reads = append(h.Reads, r)
	}
	c.send(append(h.Append(nil), msg...))
	return c.xid
}

// poll takes what is there, after everybody else has come to rest. Its side of an RDMA Read goes on with each Poll, and
// completes nothing here; so a few that bring nothing are no end.
func (c *fabricClient) poll() {
	c.t.Helper()
	var wcs [64]transport.WC
	for idle := 0; idle < 8; {
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
			c.last = fabricReply{h, append([]byte(nil), r.Rest()...), wc.Inv}
			if c.all != nil {
				c.all[h.XID] = c.last
			}
			if _, err := c.qp.PostRecv([]transport.Recv{{Token: wc.Token, Buf: b}}); err != nil {
				c.ended = true
			}
		}
		if err != nil {
			c.ended = true
		}
		if idle++; n > 0 {
			idle = 0
		}
		if err != nil {
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
