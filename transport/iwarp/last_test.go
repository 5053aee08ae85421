package iwarp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/stag"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// What the peer said before it went is heard, also where the first to notice is a send that fails (RFC 5040 section 5.4).
func TestAFailedTransmitDoesNotHideWhatThePeerSaid(t *testing.T) {
	m := slab(t, 4096)
	p, e := rawTo(t, Options{CRC: CRCPeer}, mpaFrame{Revision: 1}, transport.ConnParams{ReadsIn: 4, ReadsOut: 4}, nil)
	e.recv(1, m.Cut(0, 64))
	hdr := make([]byte, untaggedLen)
	putUntagged(hdr, 5, ctrlLast|ctrlV1|opSend, 0, qnSend, 1, 0)
	p.fpdu(hdr, []byte("hello"))
	said := violation(transport.LayerRDMAP, rdmapProtection, rdmapBounds, "", "")
	p.write(terminateFPDU(said, nil, p.crc))
	if err := p.c.(*net.TCPConn).SetLinger(0); err != nil { // its end is a reset, so that the next send fails
		t.Fatal(err)
	}
	if err := p.c.Close(); err != nil {
		t.Fatal(err)
	}
	e.reset()
	// Sends that the socket no longer takes, before the owner looks.
	e.qp.tx.Lock()
	e.qp.tx.releaseLocked()
	e.qp.tx.Unlock()
	for i := range 3 {
		e.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: uint64(10 + i), Local: []mem.Span{m.Cut(64, 64)}})
	}
	if e.qp.life.is() != draining {
		t.Fatal("the sends were taken: the test shows nothing")
	}
	e.ok(transport.OpRecv, 1)
	var term *transport.TerminateError
	if err := e.drain(); !errors.As(err, &term) || !term.Remote || term.Code != rdmapBounds {
		t.Errorf("the connection ended with %v", err)
	}
	for i := range 3 {
		if wc := e.next(); wc.Token != uint64(10+i) || wc.Err == nil {
			t.Errorf("completion %+v", wc)
		}
	}
}

// reset waits until the peer's reset has come: until then the socket takes what is sent.
func (e *end) reset() {
	e.t.Helper()
	const closed = 7 // TCP_CLOSE of the kernel's tcp_states.h
	for ctx := testCtx(e.t); ; time.Sleep(time.Millisecond) {
		var info *unix.TCPInfo
		var err error
		if cerr := e.qp.rc.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); cerr != nil || err != nil {
			e.t.Fatal(cerr, err)
		}
		if info.State == closed {
			return
		}
		if ctx.Err() != nil {
			e.t.Fatal("the reset does not come")
		}
	}
}

// A socket that takes nothing and a peer that said nothing: the connection ends all the same.
func TestAFailedTransmitEndsTheConnection(t *testing.T) {
	m := slab(t, 4096)
	p, e := rawTo(t, Options{CRC: CRCPeer}, mpaFrame{Revision: 1}, transport.ConnParams{}, nil)
	if err := p.c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := p.c.Close(); err != nil {
		t.Fatal(err)
	}
	e.reset()
	e.qp.tx.Lock()
	e.qp.tx.releaseLocked()
	e.qp.tx.Unlock()
	e.post(transport.WR{Op: transport.OpSend, Token: 7, Local: []mem.Span{m.Cut(64, 64)}})
	if err := e.drain(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("the connection ended with %v", err)
	}
	if wc := e.next(); wc.Token != 7 || wc.Err == nil {
		t.Errorf("completion %+v", wc)
	}
}

// Frames of the engine's own grow the queue below a message that is being cut, and the message stays what it is.
func TestTheSendQueueMayGrowInTheMiddleOfAMessage(t *testing.T) {
	m := slab(t, 16<<20)
	big := m.Cut(0, 8<<20)
	fill(big.Bytes(), 3)
	a, b := pair(t, pairOptions{a: Options{Nudge: -1}, qo: transport.QPOptions{Sends: 64, Recvs: 64}})
	w := b.window()
	sink := m.Cut(8<<20, 8<<20)
	b.post(transport.WR{Op: transport.OpBind, Flags: transport.Signaled, Token: 1, Window: w, Access: transport.RemoteWrite, Local: []mem.Span{sink}})
	b.ok(transport.OpBind, 1)
	// The peer does not read, so the Write stops in the middle.
	a.post(transport.WR{Op: transport.OpWrite, Remote: w.Remote(), Local: []mem.Span{big}})
	a.qp.tx.Lock()
	if !a.qp.tx.cur.active || a.qp.tx.state != waiting {
		t.Fatal("the Write is not in the middle: the test shows nothing")
	}
	room := a.qp.tx.sq.Room()
	for a.qp.tx.sq.Len() < room {
		a.qp.tx.ownLocked(transport.OpWrite)
	}
	a.qp.tx.own = 0
	a.qp.tx.Unlock()
	a.qp.nudgeOnce() // the one that needs room
	a.qp.tx.Lock()
	if a.qp.tx.sq.Room() == room {
		t.Fatal("the queue did not grow: the test shows nothing")
	}
	if a.qp.tx.cur.msg != a.qp.tx.sq.At(a.qp.tx.cut-1) {
		t.Error("the cursor is at a message of before the growth")
	}
	a.qp.tx.Unlock()
	a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 2, Local: []mem.Span{m.Cut(0, 1)}})
	b.recv(9, m.Cut(0, 64))
	b.ok(transport.OpRecv, 9)
	if !bytes.Equal(sink.Bytes()[64:], big.Bytes()[64:]) {
		t.Error("the Write's payload is not what was posted")
	}
	a.ok(transport.OpSend, 2)
}

// The ready-to-receive frame and nudges take no slot of the upper protocol's, and never come back as completions.
func TestFramesOfTheEngineTakeNoSlotOfTheUpperProtocol(t *testing.T) {
	for name, o := range map[string]Options{"read": {rtr: rtrRead}, "write": {rtr: rtrWrite}, "send": {rtr: rtrSend}} {
		t.Run(name, func(t *testing.T) {
			const sends = 4
			o.PeerToPeer, o.Revision = true, 2
			m := slab(t, 4096)
			a, b := pair(t, pairOptions{a: o, b: o, qo: transport.QPOptions{Sends: sends, Recvs: 64}})
			for i := range 40 {
				b.recv(uint64(i), m.Cut(0, 64))
			}
			a.qp.nudgeOnce()
			for round := range 10 {
				var wrs []transport.WR
				for i := range sends {
					wrs = append(wrs, transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: uint64(100 + i), Local: []mem.Span{m.Cut(0, 8)}})
				}
				if n, err := a.qp.Post(wrs); err != nil {
					t.Fatalf("round %d: %d of %d: %v", round, n, sends, err)
				}
				for i := range sends {
					b.ok(transport.OpRecv, uint64(round*sends+i))
					a.ok(transport.OpSend, uint64(100+i))
				}
			}
			a.qp.nudgeOnce()
			_ = a.qp.Close(transport.Reason{})
			if a.drain(); len(a.got) != 0 {
				t.Errorf("completions of nothing: %+v", a.got)
			}
		})
	}
}

// Each receive that PostRecv took comes back, however close to the end it was posted.
func TestEveryReceiveThatWasTakenComesBack(t *testing.T) {
	m := slab(t, 4096)
	for range 50 {
		a, b := pair(t, pairOptions{})
		var wg sync.WaitGroup
		taken := 0
		wg.Go(func() {
			for {
				n, err := b.qp.PostRecv([]transport.Recv{{Token: 1, Buf: m.Cut(0, 8)}})
				taken += n
				if err != nil {
					return
				}
			}
		})
		wg.Go(func() { _ = b.qp.Close(transport.Reason{}) })
		_ = b.drain()
		wg.Wait()
		if n, err := b.qp.Poll(b.wc[:]); n != 0 || err == nil {
			t.Errorf("%d completions behind the last: %v", n, err)
		}
		if len(b.got) != taken {
			t.Fatalf("%d receives were taken, %d came back", taken, len(b.got))
		}
		_ = a.qp.Close(transport.Reason{})
	}
}

// A mistake in the code that reads what a peer says ends that peer's connection; it leaves no lock held and no other
// connection hears of it.
func TestADefectInTheParserEndsThatConnection(t *testing.T) {
	m := slab(t, 64<<10)
	a, b := pair(t, pairOptions{})
	c, d := pair(t, pairOptions{})
	for _, e := range []*end{b, d} {
		e.recv(1, m.Cut(0, 64))
	}
	b.qp.stags.Lock()
	b.qp.stags.tab = stag.Table[window]{} // the defect: looking up an STag panics
	b.qp.stags.Unlock()
	a.post(transport.WR{Op: transport.OpWrite, Remote: transport.Remote{STag: 0x1234}, Local: []mem.Span{m.Cut(0, 4096)}})
	var term *transport.TerminateError
	if err := b.drain(); !errors.As(err, &term) || term.Remote || !strings.Contains(err.Error(), "defect") {
		t.Errorf("the connection ended with %v", err)
	}
	if len(b.got) != 1 || b.got[0].Err == nil {
		t.Errorf("completions %+v", b.got)
	}
	if err := a.drain(); !errors.As(err, &term) || !term.Remote {
		t.Errorf("the peer hears %v", err)
	}
	c.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{m.Cut(0, 8)}})
	d.ok(transport.OpRecv, 1)
}

// faulty is a connection that panics where it is read: a defect of the code that reads the first frame.
type faulty struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

func (f *faulty) Read([]byte) (int, error)    { panic("a defect") }
func (f *faulty) SetDeadline(time.Time) error { return nil }
func (f *faulty) Close() error {
	f.once.Do(func() { close(f.closed) })
	return nil
}

type oneConn struct {
	net.Listener
	c chan net.Conn
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	default:
		return l.Listener.Accept()
	}
}

func TestADefectInTheNegotiationEndsThatConnection(t *testing.T) {
	ctx := testCtx(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dev := New(Options{})
	defer func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	f := &faulty{closed: make(chan struct{})}
	first := make(chan net.Conn, 1)
	first <- f
	l, err := dev.listen(&oneConn{Listener: ln, c: first})
	if err != nil {
		t.Fatal(err)
	}
	<-f.closed
	qs := [2]transport.QP{}
	for i := range qs {
		if qs[i], err = dev.NewQP(transport.QPOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	errs := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, qs[0], transport.ConnParams{})
		}
		errs <- err
	}()
	if _, err := dev.Dial(ctx, ln.Addr().String(), qs[1], transport.ConnParams{}); err != nil {
		t.Errorf("the next connection: %v", err)
	}
	if err := <-errs; err != nil {
		t.Error(err)
	}
	for _, q := range qs {
		_ = q.Close(transport.Reason{})
	}
}

// A connection that is closed in order sends what it has been given; one that is cut is reset, so that the kernel does not go on sending
// for minutes what a peer that does not answer now would still take.
func TestAConnectionThatIsCutIsReset(t *testing.T) {
	for name, cut := range map[string]bool{"cut": true, "closed": false} {
		t.Run(name, func(t *testing.T) {
			p, e := rawTo(t, Options{CRC: CRCPeer}, mpaFrame{Revision: 1}, transport.ConnParams{}, nil)
			if err := e.qp.Close(transport.Reason{Cut: cut}); err != nil {
				t.Fatal(err)
			}
			if err := p.c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, p.c); errors.Is(err, syscall.ECONNRESET) != cut || !cut && err != nil {
				t.Errorf("the peer's end: %v", err)
			}
			if err := p.c.Close(); err != nil {
				t.Error(err)
			}
			_ = e.drain()
		})
	}
}
