package lock

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// Machines that call themselves the same, as clones and containers do, are two clients.
func TestClientsOfOneNameDoNotShareLocks(t *testing.T) {
	m, c := manager(t, Options{})
	a := lockArgs("lab", "1@lab", 0, 10)
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Granted {
		t.Fatal(s)
	}
	if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &a)); s != nlm4.Denied {
		t.Fatalf("a second client of that name: %v", s)
	}
	u := nlm4.UnlockArgs{Lock: a.Lock}
	do(m, 0, 2, nlm4.ProcUnlock, &u)
	if m.Locks() != 1 {
		t.Fatal("one client unlocked what the other has")
	}
	a.Block = true
	if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &a)); s != nlm4.Blocked {
		t.Fatal(s)
	}
	do(m, 0, 1, nlm4.ProcUnlock, &u)
	if g := c.next(t); g.host != netip.MustParseAddr("192.0.2.2") {
		t.Fatalf("%v was called back", g.host)
	}
	m.wg.Wait()
	n := nlm4.Notify{Name: []byte("lab"), State: 5}
	do(m, 1, 1, nlm4.NSMProcNotify, &n)
	if m.Locks() != 1 {
		t.Fatal("the restart of one client freed the other's lock")
	}
}

func TestFreeAllIsForTheCallersOwn(t *testing.T) {
	m, _ := manager(t, Options{})
	a := lockArgs("a", "1", 0, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	f := nlm4.FreeAllArgs{Name: []byte("a")}
	if do(m, 0, 2, nlm4.ProcFreeAll, &f); m.Locks() != 1 {
		t.Fatal("another client freed a lock")
	}
	if do(m, 0, 1, nlm4.ProcFreeAll, &f); m.Locks() != 0 {
		t.Fatal("a client's locks stay")
	}
}

// A notification that comes late does not free what its client has locked since it restarted.
func TestNotificationIsNewsOnce(t *testing.T) {
	m, _ := manager(t, Options{})
	a := lockArgs("a.example", "1", 0, 10)
	a.State = 7
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	n := nlm4.Notify{Name: []byte("a"), State: 7}
	if do(m, 1, 1, nlm4.NSMProcNotify, &n); m.Locks() != 1 {
		t.Fatal("a lock of this life was freed")
	}
	n.State = 9
	if do(m, 1, 1, nlm4.NSMProcNotify, &n); m.Locks() != 0 {
		t.Fatal("a lock of an earlier life stays")
	}
	a.State = 0 // some do not say
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	if do(m, 1, 1, nlm4.NSMProcNotify, &n); m.Locks() != 1 {
		t.Fatal("a repeated notification freed a lock")
	}
}

// hold makes a's lock be in the way of b's, which waits.
func hold(t *testing.T, m *Manager, lockProc uint32) (a, b nlm4.LockArgs) {
	a, b = lockArgs("a", "1", 0, 10), lockArgs("b", "2", 0, 10)
	b.Block = true
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Granted {
		t.Fatal(s)
	}
	if r := do(m, 0, 2, lockProc, &b); lockProc == nlm4.ProcLock {
		if s := stat(t, r); s != nlm4.Blocked {
			t.Fatal(s)
		}
	}
	return a, b
}

// slow answers a callback only when it is told to.
func slow(m *Manager, c *clients) (ask, told chan struct{}) {
	ask, told = make(chan struct{}), make(chan struct{})
	m.opt.Call = func(ctx context.Context, from, to netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error) {
		close(ask)
		<-told
		return c.call(ctx, from, to, prog, vers, proc, args)
	}
	return ask, told
}

// Linux asks again while it waits. When the answer to that overtakes GRANTED, the client refuses GRANTED, and has the lock.
func TestRefusedGrantOfALockThatItsClientHas(t *testing.T) {
	m, c := manager(t, Options{})
	c.answer = nlm4.Denied
	ask, told := slow(m, c)
	a, b := hold(t, m, nlm4.ProcLock)
	u := nlm4.UnlockArgs{Lock: a.Lock}
	stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	<-ask
	if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &b)); s != nlm4.Granted {
		t.Fatal(s)
	}
	close(told)
	m.wg.Wait()
	if m.Locks() != 1 {
		t.Fatal("the lock is gone, and its client does not know")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.cookies) != 0 {
		t.Fatal("the grant is not forgotten")
	}
}

func TestCancelOfAGrantThatIsOnItsWay(t *testing.T) {
	m, c := manager(t, Options{})
	ask, told := slow(m, c)
	a, b := hold(t, m, nlm4.ProcLock)
	u := nlm4.UnlockArgs{Lock: a.Lock}
	stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	<-ask
	x := nlm4.CancelArgs{Block: true, Exclusive: true, Lock: b.Lock}
	if s := stat(t, do(m, 0, 2, nlm4.ProcCancel, &x)); s != nlm4.Granted || m.Locks() != 0 {
		t.Fatalf("%v, %d locks", s, m.Locks())
	}
	close(told)
	m.wg.Wait()
}

// The asynchronous procedures: the reply is empty, and the result comes by a call.
func TestAsynchronousProcedures(t *testing.T) {
	m, c := manager(t, Options{})
	here := netip.MustParseAddr("192.0.2.2")
	result := func(proc uint32) *xdr.Reader {
		t.Helper()
		x := c.next(t)
		if x.host != here || x.prog != nlm4.Prog || x.proc != proc {
			t.Fatalf("%+v, not a call of %d", x, proc)
		}
		r := xdr.NewReader(x.args)
		return &r
	}
	quiet := func(r *xdr.Reader) {
		t.Helper()
		if len(r.Rest()) != 0 {
			t.Fatal("an asynchronous procedure has results")
		}
	}
	a := lockArgs("a", "1", 0, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	b := lockArgs("b", "2", 0, 10)
	b.Block, b.Cookie = true, []byte("biscuit")

	test := nlm4.TestArgs{Cookie: []byte("t"), Exclusive: true, Lock: b.Lock}
	quiet(do(m, 0, 2, nlm4.ProcTestMsg, &test))
	var tr nlm4.TestRes
	if tr.Parse(result(nlm4.ProcTestRes)); tr.Stat != nlm4.Denied || string(tr.Holder.Owner) != "1" || string(tr.Cookie) != "t" {
		t.Fatalf("%+v", tr)
	}
	quiet(do(m, 0, 2, nlm4.ProcLockMsg, &b))
	var r nlm4.Res
	if r.Parse(result(nlm4.ProcLockRes)); r.Stat != nlm4.Blocked || string(r.Cookie) != "biscuit" {
		t.Fatalf("%+v", r)
	}
	cancel := nlm4.CancelArgs{Block: true, Exclusive: true, Lock: b.Lock}
	quiet(do(m, 0, 2, nlm4.ProcCancelMsg, &cancel))
	if s := stat(t, result(nlm4.ProcCancelRes)); s != nlm4.Granted {
		t.Fatal(s)
	}
	quiet(do(m, 0, 2, nlm4.ProcLockMsg, &b))
	if s := stat(t, result(nlm4.ProcLockRes)); s != nlm4.Blocked {
		t.Fatal(s)
	}
	u := nlm4.UnlockArgs{Lock: a.Lock}
	stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	var g nlm4.TestArgs
	if g.Parse(result(nlm4.ProcGrantedMsg)); len(g.Cookie) != 8 || string(g.Lock.Owner) != "2" {
		t.Fatalf("%+v", g)
	}
	quiet(do(m, 0, 1, nlm4.ProcGrantedRes, &nlm4.Res{Cookie: g.Cookie, Stat: nlm4.Denied})) // not the one who was asked
	quiet(do(m, 0, 2, nlm4.ProcGrantedRes, &nlm4.Res{Cookie: binary.BigEndian.AppendUint64(nil, 99), Stat: nlm4.Denied}))
	quiet(do(m, 0, 2, nlm4.ProcGrantedRes, &nlm4.Res{Cookie: g.Cookie, Stat: nlm4.Granted}))
	m.wg.Wait()
	if m.Locks() != 1 {
		t.Fatal("the lock was given back")
	}
	u.Lock = b.Lock
	quiet(do(m, 0, 2, nlm4.ProcUnlockMsg, &u))
	if s := stat(t, result(nlm4.ProcUnlockRes)); s != nlm4.Granted || m.Locks() != 0 {
		t.Fatalf("%v, %d locks", s, m.Locks())
	}
	quiet(do(m, 0, 2, nlm4.ProcGrantedMsg, &g))
	if s := stat(t, result(nlm4.ProcGrantedRes)); s != nlm4.Denied {
		t.Fatalf("a lock that nobody here waits for: %v", s)
	}
	m.wg.Wait()
}

// A client whose locks are all released has nothing to reclaim.
func TestNoGraceAfterAnOrderlyEndWithoutLocks(t *testing.T) {
	dir := t.TempDir()
	m, _ := manager(t, Options{StateDir: dir})
	a := lockArgs("a", "1", 0, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	u := nlm4.UnlockArgs{Lock: a.Lock}
	stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if m2, _ := manager(t, Options{StateDir: dir}); m2.InGrace() {
		t.Fatal("grace for nobody")
	}
	m3, _ := manager(t, Options{StateDir: dir})
	stat(t, do(m3, 0, 1, nlm4.ProcLock, &a))
	if err := m3.Close(); err != nil {
		t.Fatal(err)
	}
	m4, c := manager(t, Options{StateDir: dir})
	if !m4.InGrace() {
		t.Fatal("no grace for a client that holds a lock")
	}
	c.next(t)
}

// Clients that hold nothing make room for new ones; those that hold something stay, and are told of a restart.
func TestClientsThatHoldNothingMakeRoom(t *testing.T) {
	dir := t.TempDir()
	m, _ := manager(t, Options{})
	keep := lockArgs("keeper", "1", 0, 10)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &keep))
	for i := range maxHosts + 10 {
		a := lockArgs("client"+strconv.Itoa(i), "1", 100, 10)
		if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &a)); s != nlm4.Granted {
			t.Fatalf("client %d, where the others hold nothing: %v", i, s)
		}
		u := nlm4.UnlockArgs{Lock: a.Lock}
		do(m, 0, 2, nlm4.ProcUnlock, &u)
	}
	if n := len(m.state.hosts); n > maxHosts || m.state.hosts[clientOf("keeper", netip.MustParseAddr("192.0.2.1"))] == nil {
		t.Fatalf("%d clients are known, and the one with a lock is not", n)
	}
	// A client is noted on the disk before it has a lock, also where the first try to note it failed.
	m.state.path = filepath.Join(dir, "not there yet", "nlm-state.json")
	a := lockArgs("late", "1", 200, 10)
	for range 2 {
		if s := stat(t, do(m, 0, 3, nlm4.ProcLock, &a)); s != nlm4.DeniedNolocks {
			t.Fatalf("a client that cannot be noted: %v", s)
		}
	}
	m.state.path = filepath.Join(dir, "nlm-state.json")
	if s := stat(t, do(m, 0, 3, nlm4.ProcLock, &a)); s != nlm4.Granted {
		t.Fatal(s)
	}
	if b, err := os.ReadFile(m.state.path); err != nil || !bytes.Contains(b, []byte(`"late"`)) {
		t.Errorf("the client is not noted: %v", err)
	}
}
