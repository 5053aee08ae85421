//go:build ceph && cgo && linux

package ceph_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/ceph"
)

func connect(t *testing.T, o ceph.Options) *ceph.Cluster {
	t.Helper()
	if o.Conf == "" {
		o.Conf = shared.Get(t).Conf
	}
	c, err := ceph.Connect(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Shutdown)
	return c
}

func pool(t *testing.T, c *ceph.Cluster) *ceph.IoCtx {
	t.Helper()
	x, err := c.Pool("rbd", "tests")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, what string, err error, errno unix.Errno) {
	t.Helper()
	if !errors.Is(err, errno) {
		t.Errorf("%s: %v, want %v", what, err, errno)
	}
}

func TestAnInstanceKnowsItself(t *testing.T) {
	a, b := connect(t, ceph.Options{}), connect(t, ceph.Options{})
	if a.InstanceID() == b.InstanceID() || a.InstanceID() == 0 {
		t.Errorf("instances %d and %d", a.InstanceID(), b.InstanceID())
	}
	as, err := a.BlocklistAddrs()
	must(t, err)
	bs, err := b.BlocklistAddrs()
	must(t, err)
	if len(as) != 1 || len(bs) != 1 || as[0] == bs[0] || !strings.HasPrefix(as[0], "127.0.0.1:0/") {
		t.Errorf("addresses %q and %q", as, bs)
	}
	fsid, err := a.FSID()
	must(t, err)
	if want := strings.TrimSpace(shared.Get(t).Run(t, "ceph", "fsid")); fsid != want {
		t.Errorf("fsid %s, want %s", fsid, want)
	}
	out, err := a.MonCommand(map[string]any{"prefix": "osd pool ls", "format": "json"})
	must(t, err)
	if !bytes.Contains(out, []byte(`"rbd"`)) {
		t.Errorf("pools: %s", out)
	}
	_, err = a.MonCommand(map[string]any{"prefix": "no such thing"})
	wants(t, "an unknown command", err, unix.EINVAL)
	_, err = a.Pool("no-such-pool", "")
	wants(t, "an unknown pool", err, unix.ENOENT)
}

func TestACompoundWriteIsAllOrNothing(t *testing.T) {
	x := pool(t, connect(t, ceph.Options{}))
	const o = "compound"
	v1, err := x.Write(o, &ceph.WriteOp{CreateExclusive: true, WriteFull: []byte("one"), SetXattrs: []ceph.Xattr{{Name: "owner", Value: []byte("a")}},
		OmapSet: map[string][]byte{"k1": []byte("v1"), "k2": {}, "other": []byte("x")}})
	must(t, err)
	if v1 == 0 {
		t.Error("a write has no version")
	}
	_, err = x.Write(o, &ceph.WriteOp{CreateExclusive: true})
	wants(t, "made twice", err, unix.EEXIST)
	_, err = x.Write("absent", &ceph.WriteOp{AssertExists: true, WriteFull: []byte("x")})
	wants(t, "not there", err, unix.ENOENT)
	_, err = x.Write(o, &ceph.WriteOp{CompareXattrs: []ceph.Xattr{{Name: "owner", Value: []byte("b")}}, WriteFull: []byte("stolen")})
	wants(t, "another owner", err, unix.ECANCELED)
	v2, err := x.Write(o, &ceph.WriteOp{AssertVersion: v1, CompareXattrs: []ceph.Xattr{{Name: "owner", Value: []byte("a")}}, WriteFull: []byte("two"), OmapRemove: []string{"other"}})
	must(t, err)
	if v2 <= v1 {
		t.Errorf("versions %d and %d", v1, v2)
	}
	_, err = x.Write(o, &ceph.WriteOp{AssertVersion: v1, WriteFull: []byte("late"), OmapSet: map[string][]byte{"k1": []byte("late")}})
	wants(t, "an old version", err, unix.ERANGE)
	_, err = x.Write(o, &ceph.WriteOp{AssertVersion: v2 + 1, WriteFull: []byte("early")})
	wants(t, "a version to come", err, unix.EOVERFLOW)
	data, v, err := x.Read(o, 100)
	must(t, err)
	if string(data) != "two" || v != v2 {
		t.Errorf("read %q of version %d, want two of %d", data, v, v2)
	}
	_, _, err = x.Read(o, 2)
	wants(t, "more than asked for", err, unix.EFBIG)
	if data, _, err := x.Read(o, 3); err != nil || string(data) != "two" {
		t.Errorf("as much as asked for: %q, %v", data, err)
	}
	m, err := x.OmapGet(o, "k", 10)
	must(t, err)
	if len(m) != 2 || string(m["k1"]) != "v1" || len(m["k2"]) != 0 {
		t.Errorf("map %q", m)
	}
	owner, err := x.GetXattr(o, "owner")
	must(t, err)
	if string(owner) != "a" {
		t.Errorf("owner %q", owner)
	}
	_, err = x.GetXattr(o, "none")
	wants(t, "no attribute", err, unix.ENODATA)
	_, err = x.Write(o, &ceph.WriteOp{AssertVersion: v2, WriteFull: []byte{}})
	must(t, err)
	if size, _, err := x.Stat(o); err != nil || size != 0 {
		t.Errorf("emptied: %d bytes, %v", size, err)
	}
	if l, err := x.List("comp", 10); err != nil || !slices.Equal(l, []string{o}) {
		t.Errorf("objects %q, %v", l, err)
	}
	must(t, x.Remove(o))
	wants(t, "removed twice", x.Remove(o), unix.ENOENT)
	_, _, err = x.Read(o, 1)
	wants(t, "removed", err, unix.ENOENT)
	if _, err := x.Write("a\x00b", &ceph.WriteOp{}); err == nil {
		t.Error("a name with a zero byte was taken for another one")
	}
}

func TestAMapOfMorePairsThanOneAnswerHasIsReadWhole(t *testing.T) {
	x := pool(t, connect(t, ceph.Options{}))
	set := map[string][]byte{}
	for i := range 3000 { // osd_max_omap_entries_per_request is 1024
		set[fmt.Sprintf("key%05d", i)] = []byte{byte(i)}
	}
	_, err := x.Write("large", &ceph.WriteOp{OmapSet: set})
	must(t, err)
	got, err := x.OmapGet("large", "key", 10000)
	must(t, err)
	if len(got) != len(set) || got["key02999"][0] != set["key02999"][0] {
		t.Errorf("%d of %d pairs", len(got), len(set))
	}
	if got, err = x.OmapGet("large", "", 7); err != nil || len(got) != 7 {
		t.Errorf("%d pairs where 7 were wanted, %v", len(got), err)
	}
}

func TestALockIsOneClients(t *testing.T) {
	a, b := connect(t, ceph.Options{}), connect(t, ceph.Options{})
	xa, xb := pool(t, a), pool(t, b)
	const o = "locked"
	if l, err := xa.Lockers(o, "owner"); err != nil || len(l) != 0 {
		t.Errorf("a lock of nothing: %v, %v", l, err)
	}
	must(t, xa.LockExclusive(o, "owner", "c1", "a test", 0, false))
	wants(t, "taken twice", xa.LockExclusive(o, "owner", "c1", "a test", 0, false), unix.EEXIST)
	must(t, xa.LockExclusive(o, "owner", "c1", "a test", 0, true))
	wants(t, "another's", xb.LockExclusive(o, "owner", "c2", "a test", 0, false), unix.EBUSY)
	l, err := xb.Lockers(o, "owner")
	must(t, err)
	addrs, err := a.BlocklistAddrs()
	must(t, err)
	want := ceph.Locker{Client: fmt.Sprintf("client.%d", a.InstanceID()), Cookie: "c1"}
	if len(l) != 1 || l[0].Client != want.Client || l[0].Cookie != want.Cookie || !strings.HasSuffix(l[0].Address, addrs[0]) {
		t.Errorf("holders %v, want %v at %v", l, want, addrs)
	}
	must(t, xb.BreakLock(o, "owner", l[0].Client, l[0].Cookie))
	must(t, xb.LockExclusive(o, "owner", "c2", "", 0, false))
	wants(t, "given back by another", xa.Unlock(o, "owner", "c1"), unix.ENOENT)
	must(t, xb.Unlock(o, "owner", "c2"))
	must(t, xa.LockExclusive(o, "owner", "c3", "", time.Second, false)) // it expires
	for xb.LockExclusive(o, "owner", "c4", "", 0, false) != nil {
		time.Sleep(50 * time.Millisecond) // an expiry has no event
	}
}

func TestWatchersAnswer(t *testing.T) {
	a, b := connect(t, ceph.Options{}), connect(t, ceph.Options{})
	xa, xb := pool(t, a), pool(t, b)
	const o = "watched"
	_, err := xa.Watch(o, 10*time.Second, nil, nil)
	wants(t, "a watch of nothing", err, unix.ENOENT)
	_, err = xa.Write(o, &ceph.WriteOp{WriteFull: []byte{}})
	must(t, err)
	acks, missed, err := xb.Notify(o, []byte("to none"), 5*time.Second)
	if len(acks) != 0 || missed != 0 || err != nil {
		t.Errorf("no watcher: %v, %d, %v", acks, missed, err)
	}
	var mu sync.Mutex
	var got []string
	w, err := xa.Watch(o, 10*time.Second, func(from uint64, p []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprintf("%s from %d", p, from))
		return append([]byte("heard "), p...)
	}, func(err error) { t.Errorf("lost: %v", err) })
	must(t, err)
	for i := range 20 {
		text := fmt.Sprint("note ", i)
		acks, missed, err = xb.Notify(o, []byte(text), 5*time.Second)
		must(t, err)
		if len(acks) != 1 || missed != 0 || acks[0].Client != a.InstanceID() || string(acks[0].Payload) != "heard "+text {
			t.Fatalf("answers %+v, %d missed", acks, missed)
		}
		mu.Lock()
		if len(got) != i+1 || got[i] != fmt.Sprintf("%s from %d", text, b.InstanceID()) {
			t.Fatalf("heard %q", got)
		}
		mu.Unlock()
	}
	if age, err := w.Check(); err != nil || age > time.Minute {
		t.Errorf("check: %v, %v", age, err)
	}
	must(t, w.Close())
	hang := make(chan struct{})
	w, err = xa.Watch(o, 10*time.Second, func(uint64, []byte) []byte { <-hang; return nil }, func(error) {})
	must(t, err)
	acks, missed, err = xb.Notify(o, []byte("no answer"), time.Second)
	wants(t, "a watcher that hangs", err, unix.ETIMEDOUT)
	if len(acks) != 0 || missed != 1 {
		t.Errorf("answers %+v, %d missed, want one missed", acks, missed)
	}
	close(hang)
	must(t, w.Close())
}

// The order of a takeover: shut the old client out, wait for that map, and it can change nothing any more, nor hear of anything.
func TestABlocklistedInstanceIsShutOut(t *testing.T) {
	a, b := connect(t, ceph.Options{OSDTimeout: 20 * time.Second}), connect(t, ceph.Options{})
	xa, xb := pool(t, a), pool(t, b)
	const o = "fenced"
	_, err := xa.Write(o, &ceph.WriteOp{WriteFull: []byte("before")})
	must(t, err)
	lost := make(chan error, 1)
	w, err := xa.Watch(o, 10*time.Second, func(uint64, []byte) []byte { return nil }, func(err error) { lost <- err })
	must(t, err)
	must(t, xa.LockExclusive(o, "owner", "c", "", 0, false))
	addrs, err := a.BlocklistAddrs()
	must(t, err)
	must(t, b.BlocklistAdd(addrs[0], time.Hour))
	must(t, b.WaitForLatestOSDMap())
	must(t, xb.BreakLock(o, "owner", fmt.Sprintf("client.%d", a.InstanceID()), "c"))
	must(t, xb.LockExclusive(o, "owner", "c", "", 0, false))
	_, err = xa.Write(o, &ceph.WriteOp{WriteFull: []byte("ghost")})
	wants(t, "a write of a blocklisted client", err, unix.ESHUTDOWN)
	if data, _, err := xb.Read(o, 100); err != nil || string(data) != "before" {
		t.Errorf("read %q, %v", data, err)
	}
	select {
	case err := <-lost:
		t.Log("the watch ended with", err)
	case <-time.After(time.Minute):
		t.Error("a blocklisted client's watch goes on")
	}
	wants(t, "the end of the watch", w.Close(), unix.ESHUTDOWN)
	must(t, b.BlocklistRemove(addrs[0]))
}

func TestTheLeastCapabilitiesSuffice(t *testing.T) {
	c := shared.Get(t)
	ring := c.User(t, "gateway", "mon", "profile rbd", "osd", "profile rbd pool=rbd")
	a := connect(t, ceph.Options{User: "gateway", Keyring: ring})
	b := connect(t, ceph.Options{User: "client.gateway", Keyring: ring})
	x := pool(t, a)
	_, err := x.Write("capable", &ceph.WriteOp{CreateExclusive: true, WriteFull: []byte("x"), OmapSet: map[string][]byte{"k": []byte("v")}})
	must(t, err)
	must(t, x.LockExclusive("capable", "owner", "c", "", 0, false))
	w, err := x.Watch("capable", 10*time.Second, func(uint64, []byte) []byte { return nil }, func(error) {})
	must(t, err)
	must(t, w.Close())
	addrs, err := b.BlocklistAddrs()
	must(t, err)
	must(t, a.BlocklistAdd(addrs[0], time.Minute)) // what profile rbd allows beside images
	must(t, a.WaitForLatestOSDMap())
	_, err = a.MonCommand(map[string]any{"prefix": "osd pool create", "pool": "another"})
	wants(t, "a new pool", err, unix.EACCES)
	_, err = ceph.Connect(ceph.Options{Conf: c.Conf, User: "nobody", Keyring: ring, MonTimeout: 5 * time.Second})
	if err == nil {
		t.Error("a user without a key connects")
	}
}

func TestAClusterThatIsNotThereIsAnErrorInTime(t *testing.T) {
	begin := time.Now()
	_, err := ceph.Connect(ceph.Options{Conf: shared.Get(t).Conf, MonTimeout: 2 * time.Second, Settings: map[string]string{"mon_host": "[v2:127.0.0.1:1]"}})
	wants(t, "no monitor", err, unix.ETIMEDOUT)
	if d := time.Since(begin); d > 30*time.Second {
		t.Errorf("it took %v", d)
	}
	_, err = ceph.Connect(ceph.Options{Conf: "/nonexistent/ceph.conf"})
	wants(t, "no configuration", err, unix.ENOENT)
	_, err = ceph.Connect(ceph.Options{Conf: shared.Get(t).Conf, Settings: map[string]string{"no_such_option": "1"}})
	wants(t, "an unknown option", err, unix.ENOENT)
}
