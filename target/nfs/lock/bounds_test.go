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

// on names another file.
func on(a nlm4.LockArgs, file int) nlm4.LockArgs {
	a.Lock.FH = fmt.Append(nil, "file ", file)
	return a
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
