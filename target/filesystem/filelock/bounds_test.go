package filelock

import (
	"fmt"
	"net/netip"
	"testing"
)

// What is unlocked in the middle of a range leaves two: that is refused where a file has as many as it may have, and what its owner holds stays. What
// takes a range away, or shortens one, is not.
func TestAnUnlockThatSplitsIsBounded(t *testing.T) {
	x := newStand(t)
	x.lock(x.lockOf("a", 1, 0, 0), Ask{}, Granted)
	unlock := func(off, n uint64) Verdict { return x.t.Unlock(fileOf(0), x.lockOf("a", 1, off, n)) }
	for i := range uint64(maxFileLocks + 100) {
		want := Granted
		if i >= maxFileLocks-1 {
			want = NoRoom
		}
		if v := unlock(10*i+5, 1); v != want {
			t.Fatalf("unlock %d: %v, with %d ranges", i, v, x.t.Count())
		}
	}
	if x.t.Count() != maxFileLocks {
		t.Fatalf("%d ranges", x.t.Count())
	}
	// A lock that splits is no other.
	b := x.lockOf("a", 1, 12, 1)
	b.Exclusive = false
	x.lock(b, Ask{}, NoRoom)
	b.Exclusive, b.Range = true, RangeOf(0, 20) // in place of three
	x.lock(b, Ask{}, Granted)
	if v := unlock(0, 7); v != Granted {
		t.Errorf("an unlock that shortens a range: %v", v)
	}
	if v := unlock(0, 0); v != Granted || x.t.Count() != 0 {
		t.Errorf("an unlock of all: %v, %d ranges left", v, x.t.Count())
	}
	x.idle()
}

// Ranges, waiters and shares of a host, under whatever names, take no more than its part: others lock.
func TestOneHostDoesNotHaveAllLocks(t *testing.T) {
	const each = 500 // in a file
	for what, ask := range map[string]func(x *stand, i int) Verdict{
		"ranges": func(x *stand, i int) Verdict {
			return x.t.Lock(fileOf(i/each), x.lockOf(fmt.Sprint("name ", i%7), 1, uint64(10*i), 1), Ask{})
		},
		"waiters": func(x *stand, i int) Verdict {
			on := fileOf(i / each)
			if i%each == 0 {
				x.t.Lock(on, x.lockOf("holder", 9, 0, 1), Ask{})
			}
			l := x.lockOf("b", 1, 0, 1)
			l.Owner.Name = fmt.Sprint(i)
			v := x.t.Lock(on, l, Ask{Waiter: x})
			if v == Blocked {
				v = Granted
			}
			return v
		},
		"shares": func(x *stand, i int) Verdict {
			return x.t.Share(fileOf(i/each), Share{Owner: Owner{Client: clientAt("a", 1), Name: fmt.Sprint(i)}, Access: 1}, false)
		},
	} {
		t.Run(what, func(t *testing.T) {
			x := newStand(t)
			const rest = 2000
			x.charge(addrOf(1), maxHostLocks-rest) // what it has elsewhere
			got := 0
			for i := range rest + 100 {
				switch v := ask(x, i); {
				case v == Granted && got == i:
					got++
				case v != NoRoom:
					t.Fatalf("number %d: %v, after %d", i, v, got)
				}
			}
			if got != rest {
				t.Errorf("one host has %d beside what it had", got)
			}
			if v := x.t.Lock(fileOf(1000), x.lockOf("other", 2, 1<<40, 1), Ask{}); v != Granted {
				t.Errorf("another host: %v", v)
			}
			for n := range byte(10) {
				x.t.Drop(func(c Client) bool { return c.Addr == addrOf(n) }, true)
			}
			for len(x.told) > 0 {
				x.end(true)
			}
			x.charge(addrOf(1), rest-maxHostLocks)
			x.idle()
		})
	}
}

// All hosts together have no more than there may be, and a waiter for whose range there is no room is not given it: it hears of that when it asks
// again.
func TestAWaiterIsNotGrantedBeyondTheBound(t *testing.T) {
	x := newStand(t)
	a, b := x.lockOf("a", 1, 0, 10), x.lockOf("b", 2, 0, 10)
	x.lock(a, Ask{}, Granted)
	x.lock(b, Ask{Waiter: x}, Blocked)
	x.charge(netip.Addr{}, maxLocks-x.t.used)
	if v := x.t.Lock(fileOf(1), x.lockOf("c", 3, 0, 1), Ask{}); v != NoRoom {
		t.Errorf("a lock beyond the bound: %v", v)
	}
	// What a waiter takes is its grant's until that has ended, so that its range takes one more.
	x.charge(netip.Addr{}, 1) // what a gives back
	x.unlock(a)
	if x.t.Count() != 0 || len(x.told) != 0 {
		t.Errorf("%d ranges beyond the bound, %d clients told", x.t.Count(), len(x.told))
	}
	x.lock(b, Ask{Waiter: x}, Granted) // in place of its waiter
	if x.t.used != maxLocks || x.t.count != 1 {
		t.Errorf("%d in use, %d ranges", x.t.used, x.t.count)
	}
}
