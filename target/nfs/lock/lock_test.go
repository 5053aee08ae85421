package lock

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// anyFile takes every handle for a file of that name.
type anyFile struct{}

func (anyFile) CheckLock(_ *rpcserver.Call, fh []byte) (filesystem.FileKey, filesystem.Errno) {
	if len(fh) == 0 {
		return "", filesystem.ErrBadHandle
	}
	return filesystem.FileKey(fh), filesystem.OK
}

type called struct {
	host       netip.Addr
	prog, proc uint32
	args       []byte
}

// clients are what the manager calls back.
type clients struct {
	got    chan called
	answer nlm4.Stat
}

func (c *clients) call(ctx context.Context, _, host netip.Addr, prog, _, proc uint32, args []byte) ([]byte, error) {
	select {
	case c.got <- called{host, prog, proc, args}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r := nlm4.Res{Stat: c.answer}
	return r.Append(nil), nil
}

func (c *clients) next(t *testing.T) called {
	t.Helper()
	select {
	case x := <-c.got:
		return x
	case <-time.After(patience):
		t.Fatal("nobody was called back")
		return called{}
	}
}

func manager(t *testing.T, o Options) (*Manager, *clients) {
	t.Helper()
	c := &clients{got: make(chan called, 16)}
	o.Call = c.call
	m, err := NewManager(o, anyFile{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, c
}

type item interface{ Append([]byte) []byte }

// do executes a call of the client at 192.0.2.n.
func do(m *Manager, prog int, n byte, proc uint32, args item) *xdr.Reader {
	c := &rpcserver.Call{Worker: true, Peer: &rpcserver.Peer{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, n}), 700)}}
	c.Proc = proc
	c.Args = rpcserver.Args(xdr.NewReader(args.Append(nil)))
	m.Programs()[prog].Serve(c)
	r := xdr.NewReader(c.Out)
	return &r
}

func stat(t *testing.T, r *xdr.Reader) nlm4.Stat {
	t.Helper()
	var s nlm4.Res
	if s.Parse(r); r.Err() != nil {
		t.Fatal(r.Err())
	}
	return s.Stat
}

func lockArgs(host, owner string, off, n uint64) nlm4.LockArgs {
	return nlm4.LockArgs{Exclusive: true, Lock: nlm4.Lock{Caller: []byte(host), FH: []byte("f"), Owner: []byte(owner), SVID: 1, Off: off, Len: n}}
}

func TestBlockingLockIsGrantedByCallback(t *testing.T) {
	m, c := manager(t, Options{})
	a, b := lockArgs("a", "1", 0, 10), lockArgs("b", "2", 5, 10)
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Granted {
		t.Fatal(s)
	}
	if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &b)); s != nlm4.Denied {
		t.Fatalf("a conflict that may not block: %v", s)
	}
	test := nlm4.TestArgs{Exclusive: true, Lock: b.Lock}
	var tr nlm4.TestRes
	if tr.Parse(do(m, 0, 2, nlm4.ProcTest, &test)); tr.Stat != nlm4.Denied || tr.Holder.Off != 0 || tr.Holder.Len != 10 || string(tr.Holder.Owner) != "1" {
		t.Fatalf("%+v", tr)
	}
	b.Block = true
	for range 2 { // the second is a retransmission
		if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &b)); s != nlm4.Blocked {
			t.Fatal(s)
		}
	}
	u := nlm4.UnlockArgs{Lock: a.Lock}
	if s := stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u)); s != nlm4.Granted {
		t.Fatal(s)
	}
	g := c.next(t)
	var ga nlm4.TestArgs
	r := xdr.NewReader(g.args)
	if ga.Parse(&r); g.proc != nlm4.ProcGranted || g.host != netip.MustParseAddr("192.0.2.2") || ga.Lock.Off != 5 || string(ga.Lock.Owner) != "2" {
		t.Fatalf("%+v %+v", g, ga)
	}
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Denied {
		t.Fatalf("the lock was given twice: %v", s)
	}
	if m.Locks() != 1 {
		t.Fatalf("%d locks", m.Locks())
	}
}

func TestCancelAndRefusedGrant(t *testing.T) {
	m, c := manager(t, Options{})
	a, b, d := lockArgs("a", "1", 0, 0), lockArgs("b", "2", 0, 0), lockArgs("d", "4", 0, 0)
	b.Block, d.Block = true, true
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	stat(t, do(m, 0, 2, nlm4.ProcLock, &b))
	stat(t, do(m, 0, 4, nlm4.ProcLock, &d))
	x := nlm4.CancelArgs{Block: true, Exclusive: true, Lock: b.Lock}
	if s := stat(t, do(m, 0, 2, nlm4.ProcCancel, &x)); s != nlm4.Granted {
		t.Fatal(s)
	}
	if s := stat(t, do(m, 0, 2, nlm4.ProcCancel, &x)); s != nlm4.Denied {
		t.Fatalf("cancelled twice: %v", s)
	}
	c.answer = nlm4.Denied // the client that waits has given up meanwhile
	u := nlm4.UnlockArgs{Lock: a.Lock}
	stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	if g := c.next(t); g.host != netip.MustParseAddr("192.0.2.4") {
		t.Fatalf("%v was called back", g.host)
	}
	m.wg.Wait() // the callback's end
	if m.Locks() != 0 {
		t.Fatal("a lock that its client did not take stays")
	}
}

func TestRestartReclaimAndGrace(t *testing.T) {
	dir := t.TempDir()
	m, _ := manager(t, Options{StateDir: dir})
	a := lockArgs("a", "1", 0, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	before := m.state.number()
	// Killed: nothing more is written.
	m2, c := manager(t, Options{StateDir: dir, Name: "server", Grace: time.Hour})
	if !m2.InGrace() {
		t.Fatal("a client held locks, and there is no grace")
	}
	n := c.next(t)
	var sm nlm4.Notify
	r := xdr.NewReader(n.args)
	if sm.Parse(&r); n.prog != nlm4.NSMProg || n.proc != nlm4.NSMProcNotify || n.host != netip.MustParseAddr("192.0.2.1") || string(sm.Name) != "server" || sm.State != before+2 {
		t.Fatalf("%+v %+v, state was %d", n, sm, before)
	}
	b := lockArgs("b", "2", 0, 10)
	if s := stat(t, do(m2, 0, 2, nlm4.ProcLock, &b)); s != nlm4.DeniedGrace {
		t.Fatalf("a new lock in grace: %v", s)
	}
	a.Reclaim = true
	if s := stat(t, do(m2, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Granted {
		t.Fatalf("a reclaim in grace: %v", s)
	}
	// And no grace where nobody held anything.
	if m3, _ := manager(t, Options{StateDir: t.TempDir()}); m3.InGrace() {
		t.Fatal("grace for nobody")
	}
	if m4, _ := manager(t, Options{}); stat(t, do(m4, 0, 1, nlm4.ProcLock, &a)) != nlm4.DeniedGrace {
		t.Fatal("a reclaim outside grace was taken")
	}
}

func TestGraceEnds(t *testing.T) {
	dir := t.TempDir()
	m, _ := manager(t, Options{StateDir: dir})
	a := lockArgs("a", "1", 0, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	m2, _ := manager(t, Options{StateDir: dir, Grace: time.Millisecond})
	m2.wg.Wait() // the end of grace, and the notification
	if m2.InGrace() {
		t.Fatal("grace does not end")
	}
	b := lockArgs("b", "2", 0, 10)
	if s := stat(t, do(m2, 0, 2, nlm4.ProcLock, &b)); s != nlm4.Granted {
		t.Fatalf("after grace: %v", s)
	}
}

func TestNotifyFreesOnlyTheClientsOwn(t *testing.T) {
	m, _ := manager(t, Options{})
	a, b := lockArgs("a", "1", 0, 10), lockArgs("b", "2", 20, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	stat(t, do(m, 0, 2, nlm4.ProcLock, &b))
	n := nlm4.Notify{Name: []byte("a"), State: 3}
	do(m, 1, 2, nlm4.NSMProcNotify, &n) // b says that a has restarted
	if m.Locks() != 2 {
		t.Fatal("another client's word freed a lock")
	}
	do(m, 1, 1, nlm4.NSMProcNotify, &n)
	if m.Locks() != 1 {
		t.Fatalf("%d locks after the restart of a client", m.Locks())
	}
}

func TestShares(t *testing.T) {
	m, _ := manager(t, Options{})
	share := func(n byte, owner string, mode, access, proc uint32) nlm4.Stat {
		a := nlm4.ShareArgs{Caller: []byte(owner), Owner: []byte(owner), FH: []byte("f"), Mode: mode, Access: access}
		var r nlm4.ShareRes
		r.Parse(do(m, 0, n, proc, &a))
		return r.Stat
	}
	if s := share(1, "a", 2, 1, nlm4.ProcShare); s != nlm4.Granted { // reads, denies writing
		t.Fatal(s)
	}
	if s := share(2, "b", 0, 2, nlm4.ProcShare); s != nlm4.Denied {
		t.Fatalf("writing beside one who denies it: %v", s)
	}
	if s := share(2, "b", 0, 1, nlm4.ProcShare); s != nlm4.Granted {
		t.Fatal(s)
	}
	share(1, "a", 0, 0, nlm4.ProcUnshare)
	if s := share(2, "b", 0, 2, nlm4.ProcShare); s != nlm4.Granted {
		t.Fatal(s)
	}
}

func TestBadHandleAndGarbage(t *testing.T) {
	m, _ := manager(t, Options{})
	a := lockArgs("a", "1", 0, 10)
	a.Lock.FH = nil
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.StaleFH {
		t.Fatal(s)
	}
}

// The default Caller against our own server.
func TestOneCall(t *testing.T) {
	m, _ := manager(t, Options{})
	srv := rpcserver.NewServer(rpcserver.Options{}, m.Programs()...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeTCP(l) }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a := lockArgs("a", "1", 0, 10)
	pc, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	udp := make(chan error, 1)
	go func() { udp <- srv.ServeUDP(pc) }()
	for network, at := range map[string]string{"tcp": l.Addr().String(), "udp": pc.LocalAddr().String()} {
		// From another address of this machine: the server sees it, and keeps clients apart by it.
		b, err := oneCall(ctx, network, netip.MustParseAddr("127.0.0.2"), netip.MustParseAddrPort(at), nlm4.Prog, nlm4.Vers, nlm4.ProcLock, a.Append(nil))
		if err != nil {
			t.Fatal(network, err)
		}
		r := xdr.NewReader(b)
		if s := stat(t, &r); s != nlm4.Granted {
			t.Fatal(network, s)
		}
	}
	if h := m.table.Holders(); len(h) != 1 || !h[clientOf("a", netip.MustParseAddr("127.0.0.2"))] {
		t.Fatalf("%v hold locks", h)
	}
	if err := srv.Close(ctx); err != nil {
		t.Fatal(err)
	}
	for _, c := range []chan error{done, udp} {
		if err := <-c; !errors.Is(err, rpcserver.ErrServerClosed) {
			t.Fatal(err)
		}
	}
}

// moved takes every handle for a file of that name on a device that may change its number.
type moved struct{ dev string }

func (f *moved) CheckLock(_ *rpcserver.Call, fh []byte) (filesystem.FileKey, filesystem.Errno) {
	return filesystem.FileKey(f.dev + "/" + string(fh)), filesystem.OK
}

// A disk that comes back has another device number, and handles are the same: so are the locks.
func TestALockIsHeldByItsHandleWhateverTheDeviceNumber(t *testing.T) {
	m, c := manager(t, Options{})
	dev := &moved{"8:16"}
	m.files = dev
	a, b := lockArgs("a", "1", 0, 10), lockArgs("b", "2", 0, 10)
	ask := func(who byte, proc uint32, args item, want nlm4.Stat) {
		t.Helper()
		if s := stat(t, do(m, 0, who, proc, args)); s != want {
			t.Errorf("status %v, not %v", s, want)
		}
	}
	ask(1, nlm4.ProcLock, &a, nlm4.Granted)
	dev.dev = "8:32"
	var tr nlm4.TestRes
	if tr.Parse(do(m, 0, 2, nlm4.ProcTest, &nlm4.TestArgs{Exclusive: true, Lock: b.Lock})); tr.Stat != nlm4.Denied {
		t.Errorf("TEST: %v", tr.Stat)
	}
	ask(2, nlm4.ProcLock, &b, nlm4.Denied)
	b.Block = true
	ask(2, nlm4.ProcLock, &b, nlm4.Blocked)
	ask(2, nlm4.ProcCancel, &nlm4.CancelArgs{Exclusive: true, Block: true, Lock: b.Lock}, nlm4.Granted)
	ask(2, nlm4.ProcLock, &b, nlm4.Blocked)
	ask(1, nlm4.ProcUnlock, &nlm4.UnlockArgs{Lock: a.Lock}, nlm4.Granted)
	c.next(t)
	ask(2, nlm4.ProcUnlock, &nlm4.UnlockArgs{Lock: b.Lock}, nlm4.Granted)
	if n := m.Locks(); n != 0 {
		t.Errorf("%d locks are left", n)
	}
	ask(1, nlm4.ProcLock, &a, nlm4.Granted)
}
