package iscsi

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) {
	// Each check is a session of its own; -rapid.checks asks for more.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

const (
	testTarget    = "iqn.2026-11.dev.sluice:disk"
	testInitiator = "iqn.2026-11.dev.sluice:host"
	patience      = 60 * time.Second
	diskSize      = 16 << 20
)

// gate is a device that holds writes or reads back on request.
type gate struct {
	blockdev.Device
	mu      sync.Mutex
	closed  bool
	held    []*blockdev.Request
	arrived chan struct{}
}

func (g *gate) Can(op blockdev.Op) bool { return blockdev.Can(g.Device, op) }

func (g *gate) Submit(r *blockdev.Request) {
	g.mu.Lock()
	if g.closed {
		g.held = append(g.held, r)
		g.mu.Unlock()
		g.arrived <- struct{}{}
		return
	}
	g.mu.Unlock()
	g.Device.Submit(r)
}

func (g *gate) shut() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

func (g *gate) open() {
	g.mu.Lock()
	held := g.held
	g.held, g.closed = nil, false
	g.mu.Unlock()
	for _, r := range held {
		g.Device.Submit(r)
	}
}

type fixture struct {
	t    testing.TB
	srv  *Server
	pool *mem.Pool
	dev  *gate
	st   *scsi.Target
	lu   *scsi.LogicalUnit
	logs *observer.ObservedLogs
	addr string // TCP
	rnic transport.Device
	far  transport.Device // the initiator's
	farM *mem.Pool
	rdma string
}

// newFixture serves one target on loopback TCP.
func newFixture(t testing.TB, opts ...func(*Options)) *fixture {
	t.Helper()
	return bare(t, opts...).listen()
}

// listen serves on loopback TCP until the test ends.
func (f *fixture) listen() *fixture {
	t := f.t
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	f.addr = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- f.srv.Serve(context.Background(), l, Portal{Group: 1}) }()
	t.Cleanup(func() {
		f.close()
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	})
	return f
}

// newTwins makes the two ends' devices.
var newTwins = transporttest.Twin

// newTwinFixture serves one target on the in-memory fabric; usable in a synctest bubble.
func newTwinFixture(t testing.TB, opts ...func(*Options)) *fixture {
	t.Helper()
	f := bare(t, opts...)
	f.rnic, f.far = newTwins()
	f.farM = mem.NewPool(32 << 20)
	must(t, f.farM.OnSlab(f.far))
	l, err := f.rnic.Listen(context.Background(), "twin:3260")
	must(t, err)
	f.rdma = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- f.srv.ServeRDMA(context.Background(), f.rnic, l, Portal{Group: 1}) }()
	t.Cleanup(func() {
		f.close()
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("ServeRDMA: %v", err)
		}
		must(t, f.far.Close())
		must(t, f.rnic.Close())
	})
	return f
}

// pipeListener hands out in-memory streams: the TCP datamover without sockets, for synctest.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 3260} }

// newPipeFixture serves one target over net.Pipe.
func newPipeFixture(t testing.TB, opts ...func(*Options)) (*fixture, func() *peer) {
	t.Helper()
	f := bare(t, opts...)
	l := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- f.srv.Serve(context.Background(), l, Portal{Group: 1}) }()
	t.Cleanup(func() {
		f.close()
		must(t, <-done)
	})
	return f, func() *peer {
		a, b := net.Pipe()
		l.conns <- b
		p := newPeer(t, &tcpWire{nc: a})
		t.Cleanup(p.w.close)
		return p
	}
}

func bare(t testing.TB, opts ...func(*Options)) *fixture {
	t.Helper()
	return bareIn(t, "", "0001", opts...)
}

// bareIn is bare with a directory for state and the serial number of its disk.
func bareIn(t testing.TB, state, serial string, opts ...func(*Options)) *fixture {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	f := &fixture{t: t, pool: mem.NewPool(128 << 20), logs: logs}
	o := Options{Memory: f.pool, Log: zap.New(core), Timeouts: Timeouts{Drain: 2 * time.Second}}
	for _, fn := range opts {
		fn(&o)
	}
	below, err := bmem.Open(bmem.Options{Size: diskSize, Logical: 512})
	must(t, err)
	f.dev = &gate{Device: below, arrived: make(chan struct{}, 1024)}
	f.st, err = scsi.NewTarget(scsi.TargetOptions{Name: testTarget, Memory: f.pool, StateDir: state})
	must(t, err)
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Device: f.dev, Name: "disk", Serial: serial})
	must(t, err)
	f.lu = lu
	must(t, f.st.AddLUN(0, lu))
	f.srv, err = NewServer(o)
	must(t, err)
	must(t, f.srv.AddTarget(Target{Name: testTarget, SCSI: f.st}))
	return f
}

func (f *fixture) close() {
	f.dev.open()
	if err := f.srv.Close(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		f.t.Errorf("Close: %v", err)
	}
	if n := f.pool.Used(); n != 0 {
		f.t.Errorf("%d registered bytes are still out after Close", n)
	}
	must(f.t, f.dev.Device.Close())
}

// loggedOnce fails unless a line with these words was logged.
func (f *fixture) logged(words ...string) {
	f.t.Helper()
	for _, e := range f.logs.All() {
		s := e.Message + " " + fmt.Sprint(e.ContextMap())
		all := true
		for _, w := range words {
			all = all && strings.Contains(s, w)
		}
		if all {
			return
		}
	}
	f.t.Errorf("no log line has %q", words)
	for _, e := range f.logs.All() {
		f.t.Logf("%s %v", e.Message, e.ContextMap())
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pdu is one received PDU.
type pdu struct {
	b    iscsi.BHS
	data []byte
	inv  uint32 // over iSER: the STag that came with it
}

// wire is a raw initiator's connection.
type wire interface {
	send(h *iscsi.ISERHeader, b iscsi.BHS, ahs, data []byte) error
	recv() (pdu, error)
	close()
}

// peer is a scripted initiator: it sends what it is told and believes nothing.
type peer struct {
	t      testing.TB
	w      wire
	cmdSN  uint32
	statSN uint32 // expected next
	itt    uint32
	isid   iscsi.ISID
	tsih   uint16
	max    uint32 // MaxCmdSN as last seen

	beforeEnd func() // runs before the last request of chap
}

// tcpWire speaks over a byte stream.
type tcpWire struct {
	nc     net.Conn
	hd, dd bool
}

func (w *tcpWire) send(_ *iscsi.ISERHeader, b iscsi.BHS, ahs, data []byte) error {
	out := append([]byte(nil), b...)
	out = append(out, ahs...)
	if w.hd {
		out = binary.LittleEndian.AppendUint32(out, iscsi.Digest(out))
	}
	if len(data) > 0 {
		at := len(out)
		out = append(out, data...)
		out = append(out, make([]byte, iscsi.Pad(len(data)))...)
		if w.dd {
			out = binary.LittleEndian.AppendUint32(out, iscsi.Digest(out[at:]))
		}
	}
	_, err := w.nc.Write(out)
	return err
}

func (w *tcpWire) recv() (pdu, error) {
	_ = w.nc.SetReadDeadline(time.Now().Add(patience))
	b := make([]byte, iscsi.BHSLen)
	if _, err := io.ReadFull(w.nc, b); err != nil {
		return pdu{}, err
	}
	p := pdu{b: b}
	if w.hd {
		var d [4]byte
		if _, err := io.ReadFull(w.nc, d[:]); err != nil {
			return pdu{}, err
		}
		if iscsi.ReadDigest(d[:]) != iscsi.Digest(b) {
			return pdu{}, errors.New("header digest is wrong")
		}
	}
	if n := p.b.DataLen(); n > 0 {
		data := make([]byte, n+iscsi.Pad(n))
		if _, err := io.ReadFull(w.nc, data); err != nil {
			return pdu{}, err
		}
		p.data = data[:n]
		if w.dd {
			var d [4]byte
			if _, err := io.ReadFull(w.nc, d[:]); err != nil {
				return pdu{}, err
			}
			if iscsi.ReadDigest(d[:]) != iscsi.Digest(data) {
				return pdu{}, errors.New("data digest is wrong")
			}
		}
	}
	return p, nil
}

func (w *tcpWire) close() { _ = w.nc.Close() }

func (f *fixture) dial() *peer {
	f.t.Helper()
	nc, err := net.Dial("tcp", f.addr)
	must(f.t, err)
	p := newPeer(f.t, &tcpWire{nc: nc})
	f.t.Cleanup(p.w.close)
	return p
}

func newPeer(t testing.TB, w wire) *peer {
	return &peer{t: t, w: w, cmdSN: 7, itt: 100, isid: iscsi.ISID{0x80, 1, 2, 3, 0, 1}}
}

func (p *peer) send(q iscsi.PDU, ahs, data []byte) {
	p.t.Helper()
	p.sendISER(nil, q, ahs, data)
}

func (p *peer) sendISER(h *iscsi.ISERHeader, q iscsi.PDU, ahs, data []byte) {
	p.t.Helper()
	b := iscsi.BHS(iscsi.Append(nil, q))
	b.SetDataLen(len(data))
	b.SetAHSLen(len(ahs))
	must(p.t, p.w.send(h, b, ahs, data))
}

// recv returns the next PDU and checks what every response promises.
func (p *peer) recv() pdu {
	p.t.Helper()
	r, err := p.w.recv()
	if err != nil {
		p.t.Fatalf("receive: %v", err)
	}
	if iscsi.SNLess(r.b.MaxCmdSN(), p.max) && p.max != 0 {
		p.t.Fatalf("MaxCmdSN moved back from %d to %d", p.max, r.b.MaxCmdSN())
	}
	p.max = r.b.MaxCmdSN()
	counts := true
	switch r.b.Opcode() {
	case iscsi.OpDataIn:
		counts = r.b.Flags()&iscsi.FlagStatus != 0
	case iscsi.OpR2T:
		counts = false
		if r.b.StatSN() != p.statSN {
			p.t.Fatalf("an R2T carries StatSN %d, the next is %d", r.b.StatSN(), p.statSN)
		}
	case iscsi.OpNopIn:
		counts = r.b.ITT() != iscsi.Reserved
	}
	if counts {
		if p.statSN != 0 && r.b.StatSN() != p.statSN {
			p.t.Fatalf("%s has StatSN %d, expected %d", r.b.Opcode(), r.b.StatSN(), p.statSN)
		}
		p.statSN = r.b.StatSN() + 1
	}
	return r
}

func (p *peer) want(op iscsi.Opcode) pdu {
	p.t.Helper()
	r := p.recv()
	if r.b.Opcode() != op {
		p.t.Fatalf("received %s % x, expected %s", r.b.Opcode(), []byte(r.b), op)
	}
	return r
}

// wantEnd fails unless the target closes the connection.
func (p *peer) wantEnd() {
	p.t.Helper()
	if r, err := p.w.recv(); err == nil {
		p.t.Fatalf("received %s % x, expected the end of the connection", r.b.Opcode(), []byte(r.b))
	}
}

func keys(kv ...string) []byte {
	var b []byte
	for _, s := range kv {
		b = append(append(b, s...), 0)
	}
	return b
}

func text(b []byte) []string {
	var l []string
	for _, s := range strings.Split(string(b), "\x00") {
		if s != "" {
			l = append(l, s)
		}
	}
	return l
}

func value(b []byte, key string) string {
	for _, s := range text(b) {
		if k, v, _ := strings.Cut(s, "="); k == key {
			return v
		}
	}
	return "(absent)"
}

func (p *peer) loginReq(csg, nsg iscsi.Stage, transit bool) *iscsi.LoginRequest {
	return &iscsi.LoginRequest{Transit: transit, CSG: csg, NSG: nsg, ISID: p.isid, TSIH: p.tsih, ITT: 1, CmdSN: p.cmdSN, ExpStatSN: p.statSN}
}

// step sends one login request and returns the response.
func (p *peer) step(csg, nsg iscsi.Stage, transit bool, kv ...string) (iscsi.LoginResponse, []byte) {
	p.t.Helper()
	p.send(p.loginReq(csg, nsg, transit), nil, keys(kv...))
	return p.loginResp()
}

func (p *peer) loginResp() (iscsi.LoginResponse, []byte) {
	p.t.Helper()
	r := p.want(iscsi.OpLoginResponse)
	var l iscsi.LoginResponse
	l.Parse(r.b)
	return l, r.data
}

// login goes from the operational stage to full-feature phase in one request.
func (p *peer) login(kv ...string) []byte {
	p.t.Helper()
	l, data := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, append([]string{"InitiatorName=" + testInitiator, "TargetName=" + testTarget}, kv...)...)
	if l.Status != 0 || !l.Transit || l.NSG != iscsi.StageFullFeature || l.TSIH == 0 {
		p.t.Fatalf("login: %+v %q", l, data)
	}
	if w, ok := p.w.(*tcpWire); ok {
		w.hd, w.dd = value(data, "HeaderDigest") == "CRC32C", value(data, "DataDigest") == "CRC32C"
	}
	p.tsih = l.TSIH
	return data
}

// command builds a SCSI Command with the next numbers.
func (p *peer) command(cdb []byte) *iscsi.SCSICommand {
	p.itt++
	c := &iscsi.SCSICommand{Final: true, Attr: iscsi.Simple, ITT: p.itt, CmdSN: p.cmdSN, ExpStatSN: p.statSN}
	copy(c.CDB[:], cdb)
	p.cmdSN++
	return c
}

func read10(lba, blocks int) []byte  { return rw10(0x28, lba, blocks) }
func write10(lba, blocks int) []byte { return rw10(0x2a, lba, blocks) }

func rw10(op byte, lba, blocks int) []byte {
	b := make([]byte, 10)
	b[0] = op
	binary.BigEndian.PutUint32(b[2:], uint32(lba))
	binary.BigEndian.PutUint16(b[7:], uint16(blocks))
	return b
}

// ready takes the unit attention that a new session finds.
func (p *peer) ready() {
	p.t.Helper()
	p.readyOn(0)
}

func (p *peer) readyOn(lun uint16) {
	p.t.Helper()
	for range 4 {
		c := p.command(make([]byte, 6))
		c.LUN = scsi.EncodeLUN(lun)
		p.send(c, nil, nil)
		r := p.want(iscsi.OpSCSIResponse)
		if r.b[3] == 0 {
			return
		}
	}
	p.t.Fatal("the unit does not become ready")
}

// readTCP reads blocks and checks the Data-In sequence.
func (p *peer) readTCP(lba, blocks int) []byte {
	p.t.Helper()
	c := p.command(read10(lba, blocks))
	c.Read, c.EDTL = true, uint32(blocks*512)
	p.send(c, nil, nil)
	return p.dataIn(c)
}

func (p *peer) dataIn(c *iscsi.SCSICommand) []byte {
	p.t.Helper()
	var got []byte
	for sn := uint32(0); ; sn++ {
		r := p.recv()
		switch r.b.Opcode() {
		case iscsi.OpDataIn:
			if r.b.ITT() != c.ITT || r.b.DataSN() != sn || int(r.b.Offset()) != len(got) {
				p.t.Fatalf("Data-In %+v after %d bytes", []byte(r.b), len(got))
			}
			got = append(got, r.data...)
			if r.b.Flags()&iscsi.FlagStatus != 0 {
				if r.b[3] != 0 || !r.b.Final() {
					p.t.Fatalf("status % x", []byte(r.b))
				}
				return got
			}
		case iscsi.OpSCSIResponse:
			if r.b[3] != 0 || r.b.DataSN() != sn {
				p.t.Fatalf("response % x %x", []byte(r.b), r.data)
			}
			return got
		default:
			p.t.Fatalf("received %s", r.b.Opcode())
		}
	}
}

// answerR2T sends what an R2T asks for in PDUs of at most step bytes.
func (p *peer) answerR2T(r pdu, data []byte, step int) {
	p.t.Helper()
	off, n := int(r.b.Offset()), int(r.b.Residual())
	sn := uint32(0)
	for n > 0 {
		k := min(n, step)
		p.send(&iscsi.DataOut{Final: k == n, ITT: r.b.ITT(), TTT: r.b.TTT(), DataSN: sn, Offset: uint32(off), ExpStatSN: p.statSN}, nil, data[off:off+k])
		sn, off, n = sn+1, off+k, n-k
	}
}

// finishWrite answers R2Ts until the response comes.
func (p *peer) finishWrite(data []byte, step int) pdu {
	p.t.Helper()
	for {
		r := p.recv()
		switch r.b.Opcode() {
		case iscsi.OpR2T:
			p.answerR2T(r, data, step)
		case iscsi.OpSCSIResponse:
			return r
		default:
			p.t.Fatalf("received %s", r.b.Opcode())
		}
	}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func sense(r pdu) (key byte, asc uint16) {
	if len(r.data) < 2+14 {
		return 0, 0
	}
	s := r.data[2:]
	if s[0]&0x7f >= 0x72 {
		return s[1] & 15, binary.BigEndian.Uint16(s[2:])
	}
	return s[2] & 15, binary.BigEndian.Uint16(s[12:])
}
