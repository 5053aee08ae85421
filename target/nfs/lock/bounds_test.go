package lock

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/nlm4"
)

// An UNLOCK in the middle of a range leaves two: it is refused where a file has as many as it may have, and what its owner holds stays. One that
// takes a range away, or shortens one, is not.
func TestAnUnlockThatSplitsIsBounded(t *testing.T) {
	m, _ := manager(t, Options{})
	a := lockArgs("a", "1", 0, 0)
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Granted {
		t.Fatal(s)
	}
	unlock := func(off, n uint64) nlm4.Stat {
		u := nlm4.UnlockArgs{Lock: a.Lock}
		u.Lock.Off, u.Lock.Len = off, n
		return stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	}
	for i := range uint64(maxFileLocks + 100) {
		want := nlm4.Granted
		if i >= maxFileLocks-1 {
			want = nlm4.DeniedNolocks
		}
		if s := unlock(10*i+5, 1); s != want {
			t.Fatalf("UNLOCK %d: %v, with %d ranges", i, s, m.Locks())
		}
	}
	if m.Locks() != maxFileLocks {
		t.Fatalf("%d ranges", m.Locks())
	}
	// A LOCK that splits is no other.
	b := lockArgs("a", "1", 12, 1)
	b.Exclusive = false
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &b)); s != nlm4.DeniedNolocks {
		t.Errorf("a LOCK in the middle of a range: %v", s)
	}
	b.Exclusive, b.Lock.Off, b.Lock.Len = true, 0, 20 // in place of three
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &b)); s != nlm4.Granted {
		t.Errorf("a LOCK that makes the ranges less: %v", s)
	}
	if s := unlock(0, 7); s != nlm4.Granted {
		t.Errorf("an UNLOCK that shortens a range: %v", s)
	}
	if s := unlock(0, 0); s != nlm4.Granted || m.Locks() != 0 {
		t.Errorf("an UNLOCK of all: %v, %d ranges left", s, m.Locks())
	}
	m.idle(t)
}

// idle checks that nothing is counted where nothing is there.
func (m *Manager) idle(t *testing.T) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.count != 0 || m.used != 0 || len(m.of) != 0 || len(m.table) != 0 {
		t.Errorf("%d ranges, %d in use, of %v, in %d files", m.count, m.used, m.of, len(m.table))
	}
}

// on names another file.
func on(a nlm4.LockArgs, file int) nlm4.LockArgs {
	a.Lock.FH = fmt.Append(nil, "file ", file)
	return a
}

// Ranges, waiters and shares of a client, under whatever names, take no more than its part: others lock.
func TestOneClientDoesNotHaveAllLocks(t *testing.T) {
	const each = 500 // in a file
	for what, ask := range map[string]func(m *Manager, i int) nlm4.Stat{
		"ranges": func(m *Manager, i int) nlm4.Stat {
			a := on(lockArgs(fmt.Sprint("name ", i%7), "1", uint64(10*i), 1), i/each)
			return stat(t, do(m, 0, 1, nlm4.ProcNmLock, &a))
		},
		"waiters": func(m *Manager, i int) nlm4.Stat {
			a := on(lockArgs("b", fmt.Sprint(i), 0, 1), i/each)
			if i%each == 0 {
				h := on(lockArgs("holder", "1", 0, 1), i/each)
				stat(t, do(m, 0, 9, nlm4.ProcLock, &h))
			}
			a.Block = true
			s := stat(t, do(m, 0, 1, nlm4.ProcNmLock, &a))
			if s == nlm4.Blocked {
				s = nlm4.Granted
			}
			return s
		},
		"shares": func(m *Manager, i int) nlm4.Stat {
			a := nlm4.ShareArgs{Caller: []byte("a"), FH: fmt.Append(nil, "file ", i/each), Owner: fmt.Append(nil, i), Access: 1}
			var r nlm4.ShareRes
			r.Parse(do(m, 0, 1, nlm4.ProcShare, &a))
			return r.Stat
		},
	} {
		t.Run(what, func(t *testing.T) {
			m, _ := manager(t, Options{})
			const rest = 2000
			m.mu.Lock()
			m.chargeLocked(netip.AddrFrom4([4]byte{192, 0, 2, 1}), maxHostLocks-rest) // what it has elsewhere
			m.mu.Unlock()
			got := 0
			for i := range rest + 100 {
				switch s := ask(m, i); {
				case s == nlm4.Granted && got == i:
					got++
				case s != nlm4.DeniedNolocks:
					t.Fatalf("number %d: %v, after %d", i, s, got)
				}
			}
			if got != rest {
				t.Errorf("one client has %d beside what it had", got)
			}
			o := on(lockArgs("other", "1", 1<<40, 1), 1000)
			if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &o)); s != nlm4.Granted {
				t.Errorf("another client: %v", s)
			}
			for n := range byte(10) {
				m.drop(func(h hostID) bool { return h.addr == netip.AddrFrom4([4]byte{192, 0, 2, n}) }, true)
			}
			m.wg.Wait()
			m.mu.Lock()
			m.chargeLocked(netip.AddrFrom4([4]byte{192, 0, 2, 1}), rest-maxHostLocks)
			m.mu.Unlock()
			m.idle(t)
		})
	}
}

// All clients together have no more than there may be, and a waiter for whose range there is no room is not given it: it hears of that when it asks
// again.
func TestAWaiterIsNotGrantedBeyondTheBound(t *testing.T) {
	m, _ := manager(t, Options{})
	a, b := hold(t, m, nlm4.ProcLock)
	m.mu.Lock()
	m.chargeLocked(netip.Addr{}, maxLocks-m.used)
	m.mu.Unlock()
	c := on(lockArgs("c", "3", 0, 1), 1)
	if s := stat(t, do(m, 0, 3, nlm4.ProcLock, &c)); s != nlm4.DeniedNolocks {
		t.Errorf("a LOCK beyond the bound: %v", s)
	}
	// What a waiter takes is its callback's until that has ended, so that its range takes one more.
	u := nlm4.UnlockArgs{Lock: a.Lock}
	m.mu.Lock()
	m.chargeLocked(netip.Addr{}, 1) // what a gives back
	m.mu.Unlock()
	if s := stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u)); s != nlm4.Granted {
		t.Error(s)
	}
	if m.Locks() != 0 {
		t.Errorf("%d ranges beyond the bound", m.Locks())
	}
	if s := stat(t, do(m, 0, 2, nlm4.ProcLock, &b)); s != nlm4.Granted { // in place of its waiter
		t.Errorf("asked again: %v", s)
	}
	m.mu.Lock()
	if m.used != maxLocks || m.count != 1 {
		t.Errorf("%d in use, %d ranges", m.used, m.count)
	}
	m.mu.Unlock()
}

// dead answers no call to some hosts, and calls of a program, until their time is over.
func dead(m *Manager, c *clients, is func(host netip.Addr, prog uint32) bool) {
	m.opt.Call = func(ctx context.Context, from, to netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error) {
		if is(to, prog) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return c.call(ctx, from, to, prog, vers, proc, args)
	}
}

// However many locks a client that does not answer has waited for, another that waits is told of its lock at once. What the dead one was given goes
// back in the time of one callback.
func TestADeadClientDoesNotKeepOthersFromTheirLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, c := manager(t, Options{})
		gone := netip.MustParseAddr("192.0.2.2")
		dead(m, c, func(host netip.Addr, _ uint32) bool { return host == gone })
		const files = 3 * maxCallbacks
		wait := func(n byte, file int, proc uint32) (held nlm4.LockArgs) {
			a, b := on(lockArgs("a", "1", 0, 10), file), on(lockArgs(fmt.Sprint("b", n), "2", 0, 10), file)
			b.Block = true
			stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
			do(m, 0, n, proc, &b)
			return a
		}
		free := func(a nlm4.LockArgs) {
			u := nlm4.UnlockArgs{Lock: a.Lock}
			stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
		}
		for i := range files {
			free(wait(2, i, nlm4.ProcLock))
		}
		// Its asynchronous calls, too, leave room for the answers to others.
		for range 2 * maxAnswers {
			x := lockArgs("b2", "9", 0, 1)
			do(m, 0, 2, nlm4.ProcTestMsg, &nlm4.TestArgs{Lock: x.Lock})
		}
		free(wait(3, files, nlm4.ProcLock))
		x := lockArgs("b4", "9", 0, 1)
		do(m, 0, 4, nlm4.ProcTestMsg, &nlm4.TestArgs{Lock: x.Lock})
		synctest.Wait()
		told := make(map[uint32]int)
		for len(c.got) > 0 {
			told[(<-c.got).proc]++
		}
		if told[nlm4.ProcGranted] != 1 || told[nlm4.ProcTestRes] != 1 {
			t.Errorf("behind calls to a client that is dead: told %v", told)
		}
		time.Sleep(callTries*(callTime+callPause) + callTime)
		synctest.Wait()
		if m.Locks() != 1 {
			t.Errorf("%d ranges, and only one client answers", m.Locks())
		}
	})
}

// Clients of the last life that are gone do not keep those that are there from being told of their locks.
func TestNotificationsLeaveRoomForGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		m, _ := manager(t, Options{StateDir: dir})
		const old = 300
		for i := range old {
			a := lockArgs(fmt.Sprint("host", i), "1", uint64(i), 1)
			stat(t, do(m, 0, byte(i%200+10), nlm4.ProcLock, &a))
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		c := &clients{got: make(chan called, 16)}
		m2, err := NewManager(Options{StateDir: dir, Grace: time.Second, Call: func(ctx context.Context, from, to netip.Addr, prog, vers, proc uint32, args []byte) ([]byte, error) {
			if prog == nlm4.NSMProg {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return c.call(ctx, from, to, prog, vers, proc, args)
		}}, anyFile{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = m2.Close() }()
		time.Sleep(2 * time.Second)
		a, _ := hold(t, m2, nlm4.ProcLock)
		u := nlm4.UnlockArgs{Lock: a.Lock}
		stat(t, do(m2, 0, 1, nlm4.ProcUnlock, &u))
		synctest.Wait()
		if len(c.got) != 1 {
			t.Errorf("%d clients are told of their lock while notifications hang", len(c.got))
		}
	})
}
