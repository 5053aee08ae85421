package filelock

import (
	"net/netip"
	"strconv"
	"testing"

	"github.com/sluice-storage/sluice/target/filesystem"
)

// stand is a table, and what waits at it: its clients are told when the test says so.
type stand struct {
	tb     testing.TB
	t      *Table
	told   []*Grant
	closed bool
}

func newStand(t testing.TB) *stand { return &stand{tb: t, t: NewTable()} }

func (x *stand) Tell(g *Grant) bool {
	if x.closed {
		return false
	}
	x.told = append(x.told, g)
	return true
}

// end ends the oldest grant.
func (x *stand) end(taken bool) (back bool) {
	x.tb.Helper()
	if len(x.told) == 0 {
		x.tb.Fatal("no client is told of a lock")
	}
	g := x.told[0]
	x.told = x.told[1:]
	return g.End(taken)
}

// charge has a host have n more elsewhere.
func (x *stand) charge(addr netip.Addr, n int) {
	x.t.mu.Lock()
	defer x.t.mu.Unlock()
	x.t.chargeLocked(addr, n)
}

// idle checks that nothing is counted where nothing is there.
func (x *stand) idle() {
	x.tb.Helper()
	x.t.mu.Lock()
	defer x.t.mu.Unlock()
	if t := x.t; t.count != 0 || t.used != 0 || len(t.of) != 0 || len(t.files) != 0 || len(t.handles) != 0 {
		x.tb.Errorf("%d ranges, %d in use, of %v, in %d files of %d handles", t.count, t.used, t.of, len(t.files), len(t.handles))
	}
}

func (x *stand) lock(l Lock, ask Ask, want Verdict) {
	x.tb.Helper()
	if v := x.t.Lock(fileOf(0), l, ask); v != want {
		x.tb.Fatalf("%+v: %v, not %v", l, v, want)
	}
}

func (x *stand) unlock(l Lock) {
	x.tb.Helper()
	if v := x.t.Unlock(fileOf(0), l); v != Granted {
		x.tb.Fatal(v)
	}
}

// has checks how many ranges are held, and how many clients are about to be told of one.
func (x *stand) has(ranges, told int) {
	x.tb.Helper()
	if x.t.Count() != ranges || len(x.told) != told {
		x.tb.Fatalf("%d ranges, not %d; %d clients are told, not %d", x.t.Count(), ranges, len(x.told), told)
	}
}

func addrOf(n byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, n}) }

func clientAt(name string, n byte) Client {
	return Client{Protocol: "test", Name: name, Addr: addrOf(n)}
}

func (x *stand) lockOf(name string, host byte, off, n uint64) Lock {
	return Lock{Owner: Owner{Client: clientAt(name, host), Name: "1"}, Range: RangeOf(off, n), Exclusive: true, Privileged: true}
}

func fileOf(n int) File {
	s := "file " + strconv.Itoa(n)
	return File{Key: filesystem.FileKey(s), Handle: []byte(s)}
}

func TestAWaiterIsToldOfItsLock(t *testing.T) {
	x := newStand(t)
	a, b := x.lockOf("a", 1, 0, 10), x.lockOf("b", 2, 5, 10)
	x.lock(a, Ask{}, Granted)
	x.lock(b, Ask{}, Denied)
	if h, v := x.t.Test(fileOf(0), b); v != Denied || h != a {
		t.Fatalf("%v, held by %+v", v, h)
	}
	if _, v := x.t.Test(fileOf(0), a); v != Granted {
		t.Fatalf("its own lock stands in an owner's way: %v", v)
	}
	x.lock(b, Ask{Waiter: &stand{tb: t, closed: true}}, Blocked)
	x.lock(b, Ask{Waiter: x}, Blocked) // again, from where it is reached now
	x.unlock(a)
	x.has(1, 1)
	x.lock(a, Ask{}, Denied)
	if back := x.end(true); back {
		t.Error("a lock that its client took went back")
	}
	x.has(1, 0)
	x.unlock(b)
	x.idle()
}

// Waiters are served in their order, all that can be at once, and each as far as what was granted before it lets it.
func TestWaitersAreServedInTheirOrder(t *testing.T) {
	x := newStand(t)
	a := x.lockOf("a", 1, 0, 10)
	x.lock(a, Ask{}, Granted)
	for n := range byte(4) {
		l := x.lockOf("b", 2+n, 0, 10)
		l.Exclusive = n == 2
		x.lock(l, Ask{Waiter: x}, Blocked)
	}
	x.unlock(a)
	x.has(3, 3) // the two before the exclusive one, and the one behind it
	for i, n := range []byte{2, 3, 5} {
		if at := x.told[i].r.lock.Owner.Client.Addr; at != addrOf(n) {
			t.Errorf("%v is told in place of %v", at, addrOf(n))
		}
	}
	for range 3 {
		if back := x.end(false); !back {
			t.Error("a lock that its client did not take stays")
		}
	}
	x.has(1, 1) // the exclusive one, when the last of the others has gone
	x.end(true)
	x.has(1, 0)
}

// A client that has asked again and got its lock by that answer knows of it: the grant that is on its way does not take it away.
func TestAGrantThatItsClientOvertakes(t *testing.T) {
	x := newStand(t)
	a, b := x.lockOf("a", 1, 0, 10), x.lockOf("b", 2, 0, 10)
	x.lock(a, Ask{}, Granted)
	x.lock(b, Ask{Waiter: x}, Blocked)
	x.unlock(a)
	x.lock(b, Ask{Waiter: x}, Granted)
	x.has(1, 1)
	if back := x.end(false); back {
		t.Error("the lock is gone, and its client does not know")
	}
	x.has(1, 0)
	x.unlock(b)
	x.idle()
}

// A request is given up while it waits, and while its client is told; then the next one is.
func TestCancel(t *testing.T) {
	x := newStand(t)
	a, b, d := x.lockOf("a", 1, 0, 0), x.lockOf("b", 2, 0, 0), x.lockOf("d", 4, 0, 0)
	cancel := func(l Lock, want Verdict) {
		t.Helper()
		if v := x.t.Cancel(fileOf(0), l); v != want {
			t.Errorf("%v, not %v", v, want)
		}
	}
	cancel(b, Denied)
	x.lock(a, Ask{}, Granted)
	x.lock(b, Ask{Waiter: x}, Blocked)
	cancel(b, Granted)
	cancel(b, Denied)
	x.lock(b, Ask{Waiter: x}, Blocked)
	x.lock(d, Ask{Waiter: x}, Blocked)
	x.unlock(a)
	x.has(1, 1)
	cancel(b, Granted)
	x.has(1, 2)
	if back := x.end(false); back {
		t.Error("what was given up went back a second time, from the next owner")
	}
	x.end(true)
	cancel(d, Denied)
	x.has(1, 0)
	x.unlock(d)
	x.idle()
}

// Where no client can be told any more nothing is given to one that waits.
func TestAWaiterThatCannotBeToldWaitsOn(t *testing.T) {
	x := newStand(t)
	a, b := x.lockOf("a", 1, 0, 10), x.lockOf("b", 2, 0, 10)
	x.lock(a, Ask{}, Granted)
	x.lock(b, Ask{Waiter: x}, Blocked)
	x.closed = true
	x.unlock(a)
	x.has(0, 0)
	if h := x.t.Holders(); len(h) != 1 || !h[b.Owner.Client] {
		t.Errorf("%v hold or wait", h)
	}
	x.lock(b, Ask{}, Granted)
	x.unlock(b)
	x.idle()
}

// Grace ends when all who have begun it have ended it.
func TestGrace(t *testing.T) {
	x := newStand(t)
	a, s := x.lockOf("a", 1, 0, 10), Share{Owner: Owner{Client: clientAt("a", 1), Name: "s"}, Access: 1}
	x.lock(a, Ask{Reclaim: true}, NoGrace)
	x.t.BeginGrace()
	x.t.BeginGrace()
	x.t.EndGrace()
	if !x.t.InGrace() {
		t.Error("grace has ended for one of two")
	}
	x.lock(a, Ask{}, Grace)
	x.lock(a, Ask{Reclaim: true}, Granted)
	if _, v := x.t.Test(fileOf(0), a); v != Grace {
		t.Errorf("a test in grace: %v", v)
	}
	if v := x.t.Share(fileOf(0), s, false); v != Grace {
		t.Errorf("a share in grace: %v", v)
	}
	if v := x.t.Share(fileOf(0), s, true); v != Granted {
		t.Errorf("a share's reclaim: %v", v)
	}
	x.unlock(a) // at any time
	x.t.EndGrace()
	if v := x.t.Share(fileOf(0), s, true); v != NoGrace {
		t.Errorf("a share's reclaim after grace: %v", v)
	}
	x.lock(a, Ask{}, Granted)
	x.unlock(a)
	x.t.Unshare(fileOf(0), s.Owner)
	x.idle()
}

func TestShares(t *testing.T) {
	x := newStand(t)
	share := func(n byte, access, deny uint32, want Verdict) {
		t.Helper()
		if v := x.t.Share(fileOf(0), Share{Owner: Owner{Client: clientAt("a", n)}, Access: access, Deny: deny}, false); v != want {
			t.Fatalf("%v, not %v", v, want)
		}
	}
	share(1, 1, 2, Granted)
	share(2, 2, 0, Denied)
	share(2, 1, 0, Granted)
	share(3, 2, 1, Denied)
	x.t.Unshare(fileOf(0), Owner{Client: clientAt("a", 1)})
	share(2, 2, 0, Granted) // in place of its other one
	share(1, 1, 2, Denied)
	x.t.Unshare(fileOf(0), Owner{Client: clientAt("a", 2)})
	x.t.Unshare(fileOf(0), Owner{Client: clientAt("a", 2)})
	x.idle()
}

// What is dropped is the client's own, and what its root has locked only where its root says so. What it stood in the way of is granted.
func TestDrop(t *testing.T) {
	x := newStand(t)
	a, b, c := x.lockOf("a", 1, 0, 10), x.lockOf("a", 1, 20, 10), x.lockOf("a", 2, 40, 10)
	b.Privileged = false
	w := x.lockOf("w", 3, 20, 10)
	for _, l := range []Lock{a, b, c} {
		x.lock(l, Ask{}, Granted)
	}
	x.lock(w, Ask{Waiter: x}, Blocked)
	drop := func(privileged bool) {
		x.t.Drop(func(c Client) bool { return c == a.Owner.Client }, privileged)
	}
	drop(false)
	x.has(3, 1)
	if _, v := x.t.Test(fileOf(0), x.lockOf("x", 9, 0, 10)); v != Denied {
		t.Errorf("a user freed what root has locked: %v", v)
	}
	drop(true)
	x.end(true)
	x.has(2, 0)
	x.unlock(c)
	x.unlock(w)
	x.idle()
}

// Clients of two protocols are two, whatever they are called, and share the locks of a file.
func TestProtocolsShareLocks(t *testing.T) {
	x := newStand(t)
	a := x.lockOf("a", 1, 0, 10)
	other := a
	other.Owner.Client.Protocol = "other"
	x.lock(a, Ask{}, Granted)
	x.lock(other, Ask{Waiter: x}, Blocked)
	x.unlock(other) // nothing of a
	x.has(1, 0)
	x.unlock(a)
	x.end(true)
	x.lock(a, Ask{}, Denied)
}

// A disk that comes back has another device number, and handles are the same: so are the locks. What has been locked by a handle is found by it when
// the file has no key any more.
func TestALockIsHeldByItsHandleWhateverTheKey(t *testing.T) {
	x := newStand(t)
	now, later := File{"8:16/f", []byte("f")}, File{"8:32/f", []byte("f")}
	a, b := x.lockOf("a", 1, 0, 10), x.lockOf("b", 2, 0, 10)
	if v := x.t.Lock(now, a, Ask{}); v != Granted {
		t.Fatal(v)
	}
	if v := x.t.Lock(later, b, Ask{}); v != Denied {
		t.Errorf("by another key: %v", v)
	}
	// The same file by another export's handle.
	if v := x.t.Lock(File{"8:16/f", []byte("g")}, b, Ask{}); v != Denied {
		t.Errorf("by another handle: %v", v)
	}
	for _, h := range []string{"f", "g"} {
		if k, known := x.t.KeyOf([]byte(h)); !known || k != now.Key {
			t.Errorf("%s is %q", h, k)
		}
	}
	if v := x.t.Unlock(later, a); v != Granted {
		t.Error(v)
	}
	if k, known := x.t.KeyOf(now.Handle); known {
		t.Errorf("%q is known, and has no locks", k)
	}
	x.idle()
}
