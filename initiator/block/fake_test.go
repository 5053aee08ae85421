package block

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a target of a few commands over in-memory streams, so that a test can say something wrong at any moment, and
// time can be virtual.
type fake struct {
	t testing.TB
	// hook may answer a PDU itself and then reports true.
	hook func(c *fakeConn, b iscsi.BHS, data []byte) bool

	mu      sync.Mutex
	disk    [fakeSize]byte
	refuse  error                                     // of dials
	stream  func() (net.Conn, net.Conn)               // in place of net.Pipe
	away    string                                    // a host that is not there
	group   func(c *fakeConn, isid iscsi.ISID) string // its portal group tag, with the lock
	dials   int
	logins  []iscsi.LoginRequest
	conns   map[*fakeConn]struct{}
	serial  string
	window  uint32
	ignored bool // answers nothing more
	wg      sync.WaitGroup
}

const fakeSize = 1 << 20

type fakeConn struct {
	f      *fake
	addr   string
	nc     net.Conn
	n      *iscsi.Negotiator
	statSN uint32
	expCmd uint32
	out    map[uint32]*fakeWrite
}

type fakeWrite struct {
	off, n, got int
	itt         uint32
}

func newFake(t testing.TB) *fake {
	return &fake{t: t, conns: map[*fakeConn]struct{}{}, serial: "fake", window: 16}
}

func (f *fake) dial(_ context.Context, _, addr string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dials++
	if f.refuse != nil || f.away != "" && strings.HasPrefix(addr, f.away) {
		return nil, errors.Join(f.refuse, errors.New("nobody there"))
	}
	stream := net.Pipe
	if f.stream != nil {
		stream = f.stream
	}
	a, b := stream()
	c := &fakeConn{f: f, addr: addr, nc: b, n: iscsi.NewNegotiator(iscsi.NegotiatorOptions{Target: true}), statSN: 100, out: map[uint32]*fakeWrite{}}
	f.conns[c] = struct{}{}
	f.wg.Go(c.serve)
	return a, nil
}

// lose ends the connections of one host, which is away from then on.
func (f *fake) lose(host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = host
	for c := range f.conns {
		if strings.HasPrefix(c.addr, host) {
			_ = c.nc.Close()
			delete(f.conns, c)
		}
	}
}

// drop ends every connection.
func (f *fake) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		_ = c.nc.Close()
	}
	clear(f.conns)
}

func (f *fake) set(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// open logs a volume in; everything ends with the test.
func (f *fake) open(o Options, query string) (*Volume, error) {
	f.t.Helper()
	o.DialTCP = f.dial
	i, err := New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	v, err := i.Open(context.Background(), "iscsi://fake/iqn.2026-01.org.example:fake/0"+query)
	f.t.Cleanup(func() {
		if v != nil {
			if err := v.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
				f.t.Error(err)
			}
		}
		f.drop()
		f.wg.Wait()
		if err := i.Close(); err != nil {
			f.t.Error(err)
		}
	})
	return v, err
}

func (f *fake) mustOpen(o Options, query string) *Volume {
	f.t.Helper()
	v, err := f.open(o, query)
	if err != nil {
		f.t.Fatal(err)
	}
	return v
}

func (c *fakeConn) serve() {
	defer func() { _ = c.nc.Close() }()
	h := make([]byte, iscsi.BHSLen)
	for {
		if _, err := io.ReadFull(c.nc, h); err != nil {
			return
		}
		b := iscsi.BHS(h)
		data := make([]byte, b.DataLen()+iscsi.Pad(b.DataLen()))
		if _, err := io.ReadFull(c.nc, data); err != nil {
			return
		}
		data = data[:b.DataLen()]
		c.f.mu.Lock()
		hook, ignored := c.f.hook, c.f.ignored
		c.f.mu.Unlock()
		if ignored || hook != nil && hook(c, b, data) {
			continue
		}
		c.handle(b, data)
	}
}

func (c *fakeConn) numbers() iscsi.Numbers {
	c.statSN++
	return iscsi.Numbers{StatSN: c.statSN, ExpCmdSN: c.expCmd, MaxCmdSN: c.expCmd + c.f.window - 1}
}

// send is for PDUs of any content; errors end with the connection.
func (c *fakeConn) send(p iscsi.PDU, data []byte) {
	b := iscsi.Append(nil, p)
	iscsi.BHS(b).SetDataLen(len(data))
	b = append(append(b, data...), make([]byte, iscsi.Pad(len(data)))...)
	_, _ = c.nc.Write(b)
}

func (c *fakeConn) handle(b iscsi.BHS, data []byte) {
	switch b.Opcode() {
	case iscsi.OpLoginRequest:
		c.login(b, data)
	case iscsi.OpSCSICommand:
		c.expCmd = b.CmdSN() + 1
		c.command(b, data)
	case iscsi.OpDataOut:
		c.dataOut(b, data)
	case iscsi.OpNopOut:
		if b.ITT() != iscsi.Reserved {
			c.send(&iscsi.NopIn{ITT: b.ITT(), TTT: iscsi.Reserved, Numbers: c.numbers()}, nil)
		}
	case iscsi.OpTaskRequest:
		c.send(&iscsi.TaskResponse{ITT: b.ITT(), Numbers: c.numbers()}, nil)
	case iscsi.OpLogoutReq:
		c.send(&iscsi.LogoutResponse{ITT: b.ITT(), Numbers: c.numbers()}, nil)
	}
}

func (c *fakeConn) login(b iscsi.BHS, data []byte) {
	var p iscsi.LoginRequest
	p.Parse(b)
	c.f.set(func() {
		c.f.logins = append(c.f.logins, p)
		if c.f.group != nil && p.CSG == iscsi.StageOperational {
			c.n.Send("TargetPortalGroupTag", c.f.group(c, p.ISID))
		}
	})
	if _, err := c.n.Receive(p.CSG, data, p.Continue); err != nil {
		c.send(&iscsi.LoginResponse{Status: iscsi.LoginInitiatorError, ITT: p.ITT}, nil)
		return
	}
	c.expCmd = p.CmdSN
	text, _ := c.n.Fill(nil, 8192)
	c.send(&iscsi.LoginResponse{Transit: p.Transit, CSG: p.CSG, NSG: p.NSG, ISID: p.ISID, TSIH: 7, ITT: p.ITT, Numbers: c.numbers()}, text)
}

func (c *fakeConn) status(itt uint32, status uint8, sense []byte) {
	var data []byte
	if sense != nil {
		data = append(binary.BigEndian.AppendUint16(nil, uint16(len(sense))), sense...)
	}
	c.send(&iscsi.SCSIResponse{Status: status, ITT: itt, Numbers: c.numbers()}, data)
}

func (c *fakeConn) dataIn(b iscsi.BHS, data []byte) {
	n := min(len(data), int(b.EDTL()))
	residual := int(b.EDTL()) - n
	c.send(&iscsi.DataIn{Final: true, HasStatus: true, Underflow: residual > 0, Residual: uint32(residual), ITT: b.ITT(), TTT: iscsi.Reserved,
		Numbers: c.numbers()}, data[:n])
}

func fixedSense(key, asc, ascq byte) []byte {
	s := make([]byte, 18)
	s[0], s[2], s[7], s[12], s[13] = 0x70, key, 10, asc, ascq
	return s
}

func (c *fakeConn) command(b iscsi.BHS, data []byte) {
	cdb := b.CDB()
	switch cdb[0] {
	case opTestUnitReady, opSyncCache16:
		c.status(b.ITT(), statusGood, nil)
	case opInquiry:
		switch {
		case cdb[1] == 0:
			c.dataIn(b, append(make([]byte, 8), "FAKE    A DISK          1   "...))
		case cdb[2] == 0:
			c.dataIn(b, []byte{0, 0, 0, 2, 0, 0x80})
		default:
			c.dataIn(b, append([]byte{0, 0x80, 0, byte(len(c.f.serial))}, c.f.serial...))
		}
	case opServiceIn16:
		out := make([]byte, 32)
		binary.BigEndian.PutUint64(out, fakeSize/512-1)
		binary.BigEndian.PutUint32(out[8:], 512)
		c.dataIn(b, out)
	case opRead16:
		off := int(binary.BigEndian.Uint64(cdb[2:])) * 512
		c.f.mu.Lock()
		out := append([]byte(nil), c.f.disk[off:off+int(b.EDTL())]...)
		c.f.mu.Unlock()
		c.dataIn(b, out)
	case opWrite16:
		w := &fakeWrite{off: int(binary.BigEndian.Uint64(cdb[2:])) * 512, n: int(b.EDTL()), itt: b.ITT()}
		c.out[b.ITT()] = w
		c.store(w, data)
	default:
		c.status(b.ITT(), statusCheck, fixedSense(keyIllegalRequest, 0x20, 0))
	}
}

func (c *fakeConn) dataOut(b iscsi.BHS, data []byte) {
	if w := c.out[b.ITT()]; w != nil {
		c.storeMore(w, b, data)
	}
}

func (c *fakeConn) storeMore(w *fakeWrite, b iscsi.BHS, data []byte) {
	c.f.set(func() { w.got += copy(c.f.disk[w.off+int(b.Offset()):], data) })
	if w.got == w.n {
		delete(c.out, w.itt)
		c.status(w.itt, statusGood, nil)
	}
}

// store takes immediate data and asks for the rest.
func (c *fakeConn) store(w *fakeWrite, data []byte) {
	c.f.set(func() { w.got = copy(c.f.disk[w.off:], data) })
	if w.got == w.n {
		delete(c.out, w.itt)
		c.status(w.itt, statusGood, nil)
		return
	}
	n := c.numbers()
	c.statSN-- // an R2T does not count (RFC 7143 section 11.8.3)
	c.send(&iscsi.R2T{ITT: w.itt, TTT: 5, Numbers: n, Offset: uint32(w.got), Length: uint32(w.n - w.got)}, nil)
}
