//go:build ceph && cgo && linux

package radosstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/ceph"
	"github.com/sluice-storage/sluice/target/internal/gateway"
)

func connected(t *testing.T) *Store {
	t.Helper()
	s, err := Connect(options(shared.Get(t).Conf))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// What package gateway relies on is what the cluster does.
func TestTheClusterKeepsTheContract(t *testing.T) {
	s, ctx := connected(t), context.Background()
	if _, _, err := s.Read(ctx, "x", 100); !errors.Is(err, gateway.ErrNotFound) {
		t.Errorf("an object that is not there: %v", err)
	}
	if _, err := s.Write(ctx, "x", []byte("0"), 7); !errors.Is(err, gateway.ErrChanged) {
		t.Errorf("a write of a version of none: %v", err)
	}
	first, err := s.Write(ctx, "x", []byte("one"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(ctx, "x", []byte("two"), 0); !errors.Is(err, gateway.ErrChanged) {
		t.Errorf("made twice: %v", err)
	}
	second, err := s.Write(ctx, "x", []byte("two"), first)
	if err != nil || second <= first {
		t.Errorf("versions %d and %d: %v", first, second, err)
	}
	for _, v := range []uint64{first, second + 1} {
		if _, err := s.Write(ctx, "x", []byte("three"), v); !errors.Is(err, gateway.ErrChanged) {
			t.Errorf("of version %d: %v", v, err)
		}
	}
	if b, v, err := s.Read(ctx, "x", 100); string(b) != "two" || v != second || err != nil {
		t.Errorf("read %q, version %d, %v", b, v, err)
	}
}

func TestLocksNameTheirInstance(t *testing.T) {
	s, ctx := connected(t), context.Background()
	var l []*Instance
	for range 2 {
		i, err := s.Open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(i.Close)
		l = append(l, i.(*Instance))
	}
	if held, err := s.Lockers(ctx, "locked"); err != nil && !errors.Is(err, gateway.ErrNotFound) || len(held) != 0 {
		t.Errorf("at first %v, %v", held, err)
	}
	if err := l[0].Lock(ctx, "locked", "1"); err != nil {
		t.Fatal(err)
	}
	if err := l[0].Lock(ctx, "locked", "1"); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := l[1].Lock(ctx, "locked", "2"); !errors.Is(err, gateway.ErrLocked) {
		t.Errorf("by another: %v", err)
	}
	held, err := s.Lockers(ctx, "locked")
	if err != nil || len(held) != 1 || held[0].Address != l[0].Addresses()[0] || held[0].Cookie != "1" {
		t.Fatalf("held by %v, not %v: %v", held, l[0].Addresses(), err)
	}
	for range 2 { // one that is gone is no error
		if err := s.BreakLock(ctx, "locked", held[0]); err != nil {
			t.Error(err)
		}
	}
	if err := l[1].Lock(ctx, "locked", "2"); err != nil {
		t.Error(err)
	}
	if err := l[1].Unlock(ctx, "locked", "2"); err != nil {
		t.Error(err)
	}
}

func TestABlocklistedInstanceChangesNothing(t *testing.T) {
	s, ctx := connected(t), context.Background()
	a, err := s.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := s.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	write := func(i gateway.Instance, what string) error {
		_, err := i.(*Instance).objects.Write("fenced", &ceph.WriteOp{WriteFull: []byte(what)})
		return said(err)
	}
	if err := write(a, "before"); err != nil {
		t.Fatal(err)
	}
	for _, addr := range a.Addresses() {
		if err := s.Blocklist(ctx, addr, gateway.BlockFor); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.WaitForMap(ctx); err != nil {
		t.Fatal(err)
	}
	if err := write(b, "after"); err != nil {
		t.Error(err)
	}
	if err := write(a, "ghost"); !errors.Is(err, gateway.ErrBlocklisted) {
		t.Errorf("the fenced instance: %v", err)
	}
	if is, _, err := s.Read(ctx, "fenced", 100); string(is) != "after" {
		t.Errorf("there is %q, %v", is, err)
	}
	for range 2 {
		for _, addr := range a.Addresses() {
			if err := s.Unblock(ctx, addr); err != nil {
				t.Errorf("unblock: %v", err)
			}
		}
	}
}

// written is what stands in the data.
func written(t *testing.T, s *Store) (term, number int, by string) {
	t.Helper()
	b, _, err := s.Read(context.Background(), dataName, 100)
	if err == nil {
		_, err = fmt.Sscan(string(b), &term, &by, &number)
	}
	if err != nil {
		t.Fatal(err)
	}
	return term, number, by
}

// Gateways as processes on a real cluster: SIGSTOP of the owner in the middle of writes, and SIGCONT much later; a hand-over by command; drain;
// reservations by the standby; SIGKILL. No write of a former term is seen, and I/O goes on within the named time.
func TestProcessesTakeOver(t *testing.T) {
	s := connected(t)
	conf := shared.Get(t).Conf
	a := start(t, conf, "a")
	first := term(t, a.await("owner"))
	a.await("wrote")
	b := start(t, conf, "b")
	time.Sleep(3 * gateway.LookEvery) // the standby has seen the owner: a state without an event

	a.signal(syscall.SIGSTOP)
	begin := time.Now()
	second := term(t, b.await("owner"))
	b.await("wrote")
	t.Logf("after SIGSTOP writes went on within %v", time.Since(begin))
	if took := time.Since(begin); took > 5*time.Second+2*time.Second { // the figure of the documentation, and a machine that others use
		t.Errorf("writes went on after %v", took)
	}
	if second != first+1 {
		t.Errorf("terms %d and %d", first, second)
	}
	a.signal(syscall.SIGCONT)
	if l := a.await("late"); l != fmt.Sprintf("late %d blocklisted=true", first) {
		t.Errorf("the one that was stopped: %s", l)
	}
	a.await("standby")
	if at, _, by := written(t, s); at != second || by != "b" {
		t.Errorf("there is a write of term %d by %s", at, by)
	}

	begin = time.Now()
	a.do("rules")
	t.Logf("a change of reservations by the standby took %v", time.Since(begin))
	b.await("rules 1")

	begin = time.Now()
	a.do("take")
	t.Logf("a hand-over took %v", time.Since(begin))
	third := term(t, b.await("standby")) + 1
	a.await("wrote " + fmt.Sprint(third))
	if out := shared.Get(t).Run(t, "ceph", "osd", "blocklist", "ls"); strings.Count(out, "127.0.0.1") != 1 {
		t.Errorf("an owner that gave the volume up was fenced, or the one that was stopped was not: %s", out)
	}

	begin = time.Now()
	a.do("drain")
	b.await("wrote " + fmt.Sprint(third+1))
	t.Logf("a drain took %v", time.Since(begin))

	b.signal(syscall.SIGKILL)
	begin = time.Now()
	a.await("owner")
	a.await("wrote " + fmt.Sprint(third+2))
	t.Logf("after SIGKILL writes went on within %v", time.Since(begin))
	if took := time.Since(begin); took > 7*time.Second {
		t.Errorf("writes went on after %v", took)
	}
	if at, _, by := written(t, s); at != third+2 || by != "a" {
		t.Errorf("there is a write of term %d by %s", at, by)
	}
}

// A gateway needs no more than docs/gateways.md says: objects of its own namespace, and the blocklist.
func TestTheLeastRights(t *testing.T) {
	c, ctx := shared.Get(t), context.Background()
	keyring := c.User(t, "gateway", "mon", `profile rbd, allow command "osd blocklist"`, "osd", "profile rbd pool=rbd namespace=least")
	o := options(c.Conf)
	o.Namespace, o.Ceph.User, o.Ceph.Keyring = "least", "gateway", keyring
	s, err := Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	v, err := s.Write(ctx, "x", []byte("one"), 0)
	must("make", err)
	_, err = s.Write(ctx, "x", []byte("two"), v)
	must("write", err)
	_, _, err = s.Read(ctx, "x", 10)
	must("read", err)
	i, err := s.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	must("lock", i.Lock(ctx, "locked", "1"))
	held, err := s.Lockers(ctx, "locked")
	if must("lockers", err); len(held) != 1 {
		t.Fatalf("held by %v", held)
	}
	must("blocklist", s.Blocklist(ctx, held[0].Address, time.Hour))
	must("break", s.BreakLock(ctx, "locked", held[0]))
	next, err := s.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	must("wait for the map", next.WaitForMap(ctx))
	must("lock again", next.Lock(ctx, "locked", "2"))
	must("unblock", s.Unblock(ctx, held[0].Address))
	o.Namespace = "group"
	other, err := Connect(o)
	if err != nil {
		return // refused as early as that
	}
	defer other.Close()
	if _, err := other.Write(ctx, "y", []byte("one"), 0); err == nil {
		t.Error("it could write in another namespace")
	}
}
