package rpcserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// Procedures of the program that the tests serve.
const (
	procEcho   = 1 // its word back, at once
	procWait   = 2 // its word back when the gate opens
	procWrite  = 9 // how often it was executed
	procCount  = 3 // kept: how often it was executed
	procBulk   = 4 // that many bytes of payload
	procPanic  = 5
	procSpoil  = 6  // panics in what is shared
	procHold   = 7  // that many bytes of payload when the gate opens
	procTrust  = 8  // the caller has a right
	procAsk    = 10 // kept: how often it was executed, for callers without a right
	procMiddle = 11 // that many bytes of payload, and more results behind them
	procList   = 12 // that many bytes of results
	procLong   = 13 // the same, and nothing is reserved for them
)

type program struct {
	gate    chan struct{}
	entered chan struct{}
	count   atomic.Uint32
	brief   atomic.Bool  // it says that procWait hardly ever blocks
	refuses atomic.Bool  // it refuses calls before their data is fetched
	drops   atomic.Bool  // procWait has no reply
	lent    atomic.Int32 // results of procMiddle
	classed atomic.Int32 // calls
}

func (p *program) Classify(c *Call) Class {
	p.classed.Add(1)
	switch {
	case c.Proc == procEcho, c.Proc == procBulk, c.Proc == procMiddle, c.Proc == procTrust:
		return Inline
	case c.Proc == procWait && p.brief.Load():
		return Brief
	}
	return Worker
}
func (p *program) Screen(c *Call) Verdict {
	if p.refuses.Load() {
		return c.Fail(SystemErr)
	}
	return Again
}
func (*program) ID() uint32                     { return 400000 }
func (*program) Versions() (low, high uint32)   { return 1, 2 }
func (*program) Overwrites(_, proc uint32) bool { return proc == procWrite }
func (*program) Keeps(_, proc uint32) bool      { return proc == procCount || proc == procAsk }
func (p *program) Serve(c *Call) Verdict {
	v := c.Args.Uint32()
	if c.Args.Err() != nil {
		return c.Garbage()
	}
	if !c.Worker && c.Proc != procEcho && c.Proc != procBulk && c.Proc != procTrust && c.Proc != procMiddle {
		panic("a call that may block is executed by who must not")
	}
	switch c.Proc {
	case procEcho:
	case procTrust:
		c.Peer.Trust()
	case procWait:
		p.entered <- struct{}{}
		<-p.gate
		if p.drops.Load() {
			return Drop
		}
	case procCount, procWrite, procAsk:
		if c.Proc == procCount {
			c.Peer.Trust()
		}
		v = p.count.Add(1)
	case procBulk, procHold:
		c.Out = xdr.AppendUint32(c.Out, v)
		sink, err := c.Sink(int(v))
		if errors.Is(err, ErrNoMemory) {
			return Later
		} else if err != nil {
			return c.Fail(SystemErr)
		}
		if c.Proc == procHold {
			p.entered <- struct{}{}
			<-p.gate
		}
		for _, b := range sink {
			for i := range b {
				b[i] = byte(i)
			}
		}
		c.SetPayload(int(v))
		return Done
	case procMiddle:
		return p.middle(c, v)
	case procList, procLong:
		if c.Proc == procList && c.Reserve(int(v)) != nil {
			return Later
		}
		c.Out = append(xdr.AppendUint32(c.Out, v), make([]byte, v)...)
		return Done
	case procPanic:
		panic("a mistake")
	case procSpoil:
		defer Guard()
		panic("a mistake")
	default:
		return c.NoProc()
	}
	c.Out = xdr.AppendUint32(c.Out, v)
	return Done
}

func serve(t *testing.T, o Options) (*Server, *program, string) {
	t.Helper()
	p := &program{gate: make(chan struct{}), entered: make(chan struct{}, 1000)}
	s, addr := serveProgram(t, o, p)
	return s, p, addr
}

func serveProgram(t *testing.T, o Options, p Program) (*Server, string) {
	t.Helper()
	s := NewServer(o, p)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeTCP(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, ErrServerClosed) {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	return nc
}

func record(xid, proc, arg uint32) []byte {
	c := oncrpc.Call{XID: xid, Prog: 400000, Vers: 1, Proc: proc}
	b := xdr.AppendUint32(c.Append(make([]byte, 4)), arg)
	oncrpc.PutMark(b, len(b)-4, true)
	return b
}

// answer reads one reply and returns its XID, its first word and the rest.
func answer(t *testing.T, nc net.Conn) (xid, v uint32, rest []byte, err error) {
	t.Helper()
	m, err := message(nc)
	if err != nil {
		t.Fatal(err)
	}
	r := xdr.NewReader(m)
	xid, err = oncrpc.ParseReply(&r)
	return xid, r.Uint32(), r.Rest(), err
}

// message reads one record; unlike answer it may be called by any goroutine.
func message(nc net.Conn) ([]byte, error) {
	var mark [4]byte
	if _, err := io.ReadFull(nc, mark[:]); err != nil {
		return nil, err
	}
	n, _ := oncrpc.ParseMark(mark[:])
	b := make([]byte, n)
	_, err := io.ReadFull(nc, b)
	return b, err
}

func write(t *testing.T, nc net.Conn, b []byte) {
	t.Helper()
	if _, err := nc.Write(b); err != nil {
		t.Fatal(err)
	}
}

func TestCallsOfOneConnectionRunSideBySide(t *testing.T) {
	_, p, addr := serve(t, Options{})
	nc := dial(t, addr)
	for i := range uint32(10) {
		write(t, nc, record(i, procWait, i))
	}
	for range 10 {
		<-p.entered // all ten at the same time
	}
	write(t, nc, record(100, procEcho, 7))
	if xid, v, _, err := answer(t, nc); xid != 100 || v != 7 || err != nil {
		t.Fatalf("behind ten that wait: %d %d %v", xid, v, err)
	}
	close(p.gate)
	seen := make(map[uint32]bool)
	for range 10 {
		xid, v, _, err := answer(t, nc)
		if xid != v || err != nil || seen[xid] {
			t.Fatal(xid, v, err)
		}
		seen[xid] = true
	}
}

func TestManySmallCallsInOneWrite(t *testing.T) {
	for _, o := range []Options{{}, {NoInline: true}} {
		_, _, addr := serve(t, o)
		nc := dial(t, addr)
		var all []byte
		const n = 1000
		for i := range uint32(n) {
			all = append(all, record(i, procEcho, i)...)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = nc.Write(all) })
		sum := 0
		for range n {
			_, v, _, err := answer(t, nc)
			if err != nil {
				t.Fatal(err)
			}
			sum += int(v)
		}
		wg.Wait()
		if sum != n*(n-1)/2 {
			t.Fatalf("the answers add up to %d", sum)
		}
	}
}

func TestPayloadAndItsPadding(t *testing.T) {
	_, _, addr := serve(t, Options{})
	nc := dial(t, addr)
	for _, n := range []uint32{0, 1, 2, 3, 4, 4095, 70_001, MaxPayload} {
		write(t, nc, record(n, procBulk, n))
		_, v, rest, err := answer(t, nc)
		if err != nil || v != n || len(rest) != int(n)+xdr.Pad(int(n)) {
			t.Fatalf("%d bytes: %d, %d, %v", n, v, len(rest), err)
		}
		for i, c := range rest[:n] {
			if c != byte(i) {
				t.Fatalf("byte %d of %d is %d", i, n, c)
			}
		}
	}
}

// A client that asks and does not read holds no worker, and hinders nobody.
func TestClientThatDoesNotRead(t *testing.T) {
	s, _, addr := serve(t, Options{Workers: 2})
	for range 4 {
		nc := dial(t, addr)
		for i := range uint32(maxInFlight) {
			write(t, nc, record(i, procBulk, MaxPayload))
		}
	}
	nc := dial(t, addr)
	write(t, nc, record(1, procCount, 0))
	if _, _, _, err := answer(t, nc); err != nil {
		t.Fatal(err)
	}
	if s.Stats().Streams != 5 {
		t.Fatalf("%v", s.Stats())
	}
}

func TestDuplicateOfACallInProgressIsDropped(t *testing.T) {
	var c replyCache
	c.init()
	call := &Call{Peer: &Peer{Addr: netip.MustParseAddrPort("192.0.2.1:700")}, msg: []byte("the call")}
	call.XID = 5
	e, st := c.begin(call)
	if st != cacheNew {
		t.Fatal(st)
	}
	again := &Call{Peer: &Peer{Addr: netip.MustParseAddrPort("192.0.2.1:999")}, msg: []byte("the call")}
	again.XID = 5
	if _, st := c.begin(again); st != cacheBusy {
		t.Fatal(st)
	}
	c.end(e, []byte("reply"), true)
	if _, st := c.begin(again); st != cacheHit || string(again.Out) != "reply" {
		t.Fatal(st, again.Out)
	}
	other := &Call{Peer: &Peer{Addr: netip.MustParseAddrPort("192.0.2.2:700")}, msg: []byte("the call")}
	other.XID = 5
	if _, st := c.begin(other); st != cacheNew {
		t.Fatalf("another client's call: %v", st)
	}
	for i := range uint32(3 * cacheEntries) {
		x := &Call{Peer: call.Peer, msg: []byte("x")}
		x.XID = i + 10
		if e, st := c.begin(x); st == cacheNew {
			c.end(e, nil, true)
		}
	}
	n := 0
	for i := range c.shards {
		n += len(c.shards[i].m)
	}
	if n > cacheEntries {
		t.Fatalf("%d entries of %d", n, cacheEntries)
	}
}

func TestADefectInOneCallEndsItsConnection(t *testing.T) {
	for _, o := range []Options{{}, {NoInline: true}} {
		s, _, addr := serve(t, o)
		nc, other := dial(t, addr), dial(t, addr)
		write(t, nc, record(1, procPanic, 0))
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Fatal("the call that failed is answered")
		}
		write(t, other, record(2, procEcho, 9))
		if _, v, _, err := answer(t, other); v != 9 || err != nil {
			t.Fatal(v, err)
		}
		if n := s.Stats().Refused["system"]; n != 1 {
			t.Errorf("%d defects counted", n)
		}
	}
}

// What clients share cannot be trusted after a defect in it: the process ends, and clients recover.
func TestADefectInWhatIsSharedEndsTheProcess(t *testing.T) {
	if os.Getenv("SLUICE_TEST_SPOIL") != "" {
		_, _, addr := serve(t, Options{})
		nc := dial(t, addr)
		write(t, nc, record(1, procSpoil, 0))
		_, _ = nc.Read(make([]byte, 1))
		eventually(t, "this process is still there", func() bool { return false })
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestADefectInWhatIsSharedEndsTheProcess$")
	cmd.Env = append(os.Environ(), "SLUICE_TEST_SPOIL=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("state that clients share may be half changed: a mistake")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestRepliesAfterHalfClose(t *testing.T) {
	_, _, addr := serve(t, Options{})
	nc := dial(t, addr)
	write(t, nc, record(1, procCount, 0))
	if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if xid, _, _, err := answer(t, nc); xid != 1 || err != nil {
		t.Fatal(xid, err)
	}
	if _, err := nc.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestBinderOverUDP(t *testing.T) {
	p := &program{}
	b := NewBinder()
	b.Set(p, "tcp", netip.MustParseAddrPort("0.0.0.0:2049"))
	b.Set(p, "rdma", netip.MustParseAddrPort("192.0.2.9:20049"))
	s := NewServer(Options{}, b)
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeUDP(pc) }()
	nc, err := net.Dial("udp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	ask := func(vers, proc uint32, args []byte) *xdr.Reader {
		t.Helper()
		c := oncrpc.Call{XID: 1, Prog: rpcbind.Prog, Vers: vers, Proc: proc}
		if _, err := nc.Write(append(c.Append(nil), args...)); err != nil {
			t.Fatal(err)
		}
		_ = nc.SetReadDeadline(time.Now().Add(patience))
		buf := make([]byte, 65536)
		n, err := nc.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		r := xdr.NewReader(buf[:n])
		if _, err := oncrpc.ParseReply(&r); err != nil {
			t.Fatal(err)
		}
		return &r
	}
	m := rpcbind.Mapping{Prog: 400000, Vers: 1, Prot: rpcbind.ProtoTCP}
	if port := ask(2, rpcbind.ProcGetport, m.Append(nil)).Uint32(); port != 2049 {
		t.Errorf("port %d", port)
	}
	g := rpcbind.Binding{Prog: 400000, Vers: 2, Netid: "rdma"}
	for _, v := range []uint32{3, 4} {
		if a := rpcbind.ParseAddr(ask(v, rpcbind.ProcGetaddr, g.Append(nil))); a != "192.0.2.9.78.81" {
			t.Errorf("version %d: %q", v, a)
		}
	}
	// Not one for any address: the one that was asked.
	g.Netid = "tcp"
	if a := rpcbind.ParseAddr(ask(4, rpcbind.ProcGetaddr, g.Append(nil))); a != "127.0.0.1.8.1" {
		t.Errorf("%q", a)
	}
	if l := rpcbind.ParseDump(ask(3, rpcbind.ProcDump, nil)); len(l) != 4 {
		t.Errorf("%v", l)
	}
	if l := rpcbind.ParseDump2(ask(2, rpcbind.ProcDump, nil)); len(l) != 2 {
		t.Errorf("%v", l)
	}
	if ask(2, rpcbind.ProcSet, m.Append(nil)).Bool() {
		t.Error("a stranger registered a program")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, ErrServerClosed) {
		t.Fatal(err)
	}
}
