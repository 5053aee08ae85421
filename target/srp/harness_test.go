package srp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/srpinit"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testTarget = "iqn.2026-11.dev.sluice:disk"
	patience   = 60 * time.Second
	diskSize   = 16 << 20
	block      = 512
	group      = 2
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// port is an initiator port.
func port(n byte) wire.PortID { return wire.PortID{7: n, 8: 0x50, 15: 0x34} }

type fixture struct {
	t    testing.TB
	srv  *Server
	pool *mem.Pool
	dev  *gate
	st   *scsi.Target
	lu   *scsi.LogicalUnit
	logs *observer.ObservedLogs
	addr string
	rnic transport.Device
	far  transport.Device
	farM *mem.Pool
	ends []func()
}

// fabrics are what the tests go over: the twin, and the software RNIC on loopback.
var fabrics = map[string]func(testing.TB) (near, far transport.Device, addr string){
	"twin": func(testing.TB) (transport.Device, transport.Device, string) {
		a, b := transporttest.Twin()
		return a, b, "host:5555"
	},
	"iwarp": func(t testing.TB) (transport.Device, transport.Device, string) {
		return iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{}), "127.0.0.1:0"
	},
}

// each runs a test over each fabric.
func each(t *testing.T, f func(*testing.T, *fixture), opts ...func(*Options)) {
	for name := range fabrics {
		t.Run(name, func(t *testing.T) { f(t, newFixture(t, name, opts...)) })
	}
}

func newFixture(t testing.TB, fabric string, opts ...func(*Options)) *fixture {
	t.Helper()
	return newFixtureOf(t, fabric, mem.NewPool(64<<20), opts...)
}

// newFixtureOf takes its memory from pool.
func newFixtureOf(t testing.TB, fabric string, pool *mem.Pool, opts ...func(*Options)) *fixture {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	f := &fixture{t: t, logs: logs, pool: pool, farM: mem.NewPool(64 << 20)}
	store, err := bmem.Open(bmem.Options{Size: diskSize, Logical: block})
	must(t, err)
	f.dev = &gate{Device: store, arrived: make(chan struct{}, 1024)}
	f.lu, err = scsi.NewLogicalUnit(scsi.LUOptions{Name: "disk", Device: f.dev, Serial: "srptest"})
	must(t, err)
	f.st, err = scsi.NewTarget(scsi.TargetOptions{Name: testTarget, Memory: f.pool})
	must(t, err)
	must(t, f.st.AddLUN(0, f.lu))
	o := Options{Memory: f.pool, Log: zap.New(core), Find: f.find}
	for _, opt := range opts {
		opt(&o)
	}
	f.srv, err = NewServer(o)
	must(t, err)
	f.rnic, f.far, f.addr = fabrics[fabric](t)
	must(t, f.farM.OnSlab(f.far))
	l, err := f.rnic.Listen(context.Background(), f.addr)
	must(t, err)
	f.addr = l.Addr().String()
	done := make(chan error, 1)
	go func() { done <- f.srv.Serve(context.Background(), f.rnic, l, func() uint16 { return group }) }()
	t.Cleanup(func() {
		f.close()
		if err := <-done; err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
		if g := f.rnic.Gauges(); fabric == "twin" && g != (transport.Gauges{}) { // the software RNIC forgets a connection a moment after its last completion
			t.Errorf("left at the target's RNIC: %+v", g)
		}
		must(t, f.far.Close())
		must(t, f.rnic.Close())
		if n := f.pool.Used(); n != 0 {
			t.Errorf("%d bytes of buffers are not given back", n)
		}
		must(t, f.pool.Close())
		if err := f.farM.Close(); err != nil {
			t.Errorf("the initiator's memory: %v", err)
		}
		f.lu.Close()
		must(t, store.Close())
		for _, end := range f.ends {
			end()
		}
	})
	return f
}

// secondUnit makes another logical unit, which ends with the test.
func (f *fixture) secondUnit() *scsi.LogicalUnit {
	f.t.Helper()
	store, err := bmem.Open(bmem.Options{Size: 1 << 20, Logical: block})
	must(f.t, err)
	lu, err := scsi.NewLogicalUnit(scsi.LUOptions{Name: "second", Device: store, Serial: "srptest2"})
	must(f.t, err)
	f.ends = append(f.ends, func() {
		lu.Close()
		must(f.t, store.Close())
	})
	return lu
}

// find grants everything of the one target, but to port 99.
func (f *fixture) find(g uint16, target, initiator scsi.SRPPort) (Grant, error) {
	switch {
	case target != TargetPort(testTarget, g):
		return Grant{}, errors.New("no such target")
	case initiator == scsi.SRPPort(port(99)):
		return Grant{}, errors.New("not on the list")
	}
	return Grant{Target: testTarget, SCSI: f.st, Sees: func(uint16) bool { return true }}, nil
}

func (f *fixture) close() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := f.srv.Close(ctx); err != nil {
		f.t.Errorf("Close: %v", err)
	}
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) request(initiator byte) wire.LoginReq {
	return srpinit.Request(port(initiator), wire.PortID(TargetPort(testTarget, group)))
}

// dial logs in; the channel ends with the test, before the server.
func (f *fixture) dial(req wire.LoginReq) *srpinit.Channel {
	f.t.Helper()
	c, err := srpinit.Dial(f.ctx(), f.far, f.farM, f.addr, req)
	must(f.t, err)
	f.t.Cleanup(c.End)
	return c
}

// login is a session whose first commands have been told of the power on.
func (f *fixture) login(initiator byte) *srpinit.Channel {
	f.t.Helper()
	c := f.dial(f.request(initiator))
	f.ready(c)
	return c
}

// ready takes unit attentions.
func (f *fixture) ready(c *srpinit.Channel) {
	f.t.Helper()
	for range 8 {
		r := c.Do(f.ctx(), srpinit.Command{CDB: []byte{0x00}})
		must(f.t, r.Err)
		if r.Status == 0 {
			return
		}
	}
	f.t.Fatal("the unit does not become ready")
}

func rw(op byte, lba, n int) []byte {
	cdb := make([]byte, 10)
	cdb[0] = op
	binary.BigEndian.PutUint32(cdb[2:], uint32(lba))
	binary.BigEndian.PutUint16(cdb[7:], uint16(n/block))
	return cdb
}

func read10(lba, n int) []byte  { return rw(0x28, lba, n) }
func write10(lba, n int) []byte { return rw(0x2A, lba, n) }

// good fails the test where a command did not end with GOOD.
func good(t testing.TB, r srpinit.Result) srpinit.Result {
	t.Helper()
	must(t, r.Err)
	if r.Status != 0 {
		t.Fatalf("status %02Xh, sense %x", r.Status, r.Sense)
	}
	return r
}

func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, uint64(n)))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// stored reads the medium past the target.
func (f *fixture) stored(off, n int) []byte {
	f.t.Helper()
	b, err := f.pool.Get(n)
	must(f.t, err)
	defer b.Release()
	done := make(chan struct{})
	r := &blockdev.Request{Op: blockdev.Read, Offset: int64(off), Length: int64(n), Data: []mem.Span{b.Span()}, Done: func(*blockdev.Request) { close(done) }}
	f.dev.Device.Submit(r)
	<-done
	must(f.t, r.Err)
	return bytes.Clone(b.Bytes())
}
