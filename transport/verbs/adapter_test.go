//go:build verbs && cgo && linux

package verbs

// The table against a real adapter, or a soft device of the kernel. These tests want one: in the lab's guest, or anywhere
// with "rdma link add rxe0 type rxe netdev eth0". Both ends are on the machine's own address.

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

const patience = 60 * time.Second // for a hang, not for a slow machine

// adapter opens the library and gives the adapter and the address to use: the one of SLUICE_RDMA_ADDRESS, or of the first
// GID that is an IPv4 address.
func adapter(t testing.TB) (table, deviceAttr, netip.Addr) {
	t.Helper()
	need.RDMA(t)
	lib, err := openTable()
	if err != nil {
		t.Fatal(err)
	}
	devs, err := lib.Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devs) == 0 {
		t.Fatal(whyNone(sysRoot, tryNode))
	}
	if a := os.Getenv("SLUICE_RDMA_ADDRESS"); a != "" {
		return lib, devs[0], netip.MustParseAddr(a)
	}
	for _, d := range devs {
		gids, err := lib.GIDs(d.Dev, 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range gids {
			if a := netip.AddrFrom16(g.GID); a.Is4In6() {
				return lib, d, a.Unmap()
			}
		}
	}
	t.Skipf("needs an adapter's address in SLUICE_RDMA_ADDRESS: no GID of %s is one", devs[0].Name)
	return nil, deviceAttr{}, netip.Addr{}
}

// ready waits until a descriptor is readable.
func ready(t testing.TB, fd int) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(end).Milliseconds()))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != 1 {
			t.Fatalf("nothing came in %v (%v)", patience, err)
		}
		return
	}
}

// cmChannel is an event channel and its descriptor.
type cmChannel struct {
	lib table
	ch  handle
	fd  int
}

func newCM(t testing.TB, lib table) *cmChannel {
	t.Helper()
	ch, fd, err := lib.CreateEventChannel()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lib.DestroyEventChannel(ch) })
	return &cmChannel{lib, ch, fd}
}

func (c *cmChannel) next(t testing.TB) cmEvent {
	t.Helper()
	for {
		e, ok, err := c.lib.CMEvent(c.ch)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			return e
		}
		ready(t, c.fd)
	}
}

func (c *cmChannel) want(t testing.TB, k cmKind) cmEvent {
	t.Helper()
	e := c.next(t)
	if e.Kind != k {
		t.Fatalf("event %s (status %d), want %d", e.Text, e.Status, k)
	}
	return e
}

// end is one side of a connection, with a MiB of memory that the peer may read and write.
type end struct {
	t          testing.TB
	lib        table
	cm         *cmChannel
	id, qp     handle
	pd, cq, ch handle
	fd         int
	mr         handle
	lkey, rkey uint32
	mem        []byte
	base       uint64
	caps       qpCaps
}

func newEnd(t testing.TB, lib table, cm *cmChannel, id handle, inlined int) *end {
	t.Helper()
	e := &end{t: t, lib: lib, cm: cm, id: id}
	w, err := lib.Where(id)
	if err != nil || w.Dev == 0 {
		t.Fatalf("%+v, %v", w, err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	e.pd, err = lib.AllocPD(w.Dev)
	check(err)
	e.ch, e.fd, err = lib.CreateChannel(w.Dev)
	check(err)
	var size int
	e.cq, size, err = lib.CreateCQ(w.Dev, 512, e.ch)
	check(err)
	if size < 512 {
		t.Errorf("a queue of %d, wanted 512", size)
	}
	e.qp, e.caps, _, err = lib.CreateQP(id, e.pd, e.cq, qpCaps{Sends: 200, Recvs: 200, SendSGE: 2, RecvSGE: 2, Inline: inlined})
	check(err)
	if e.caps.Sends < 200 || e.caps.Recvs < 200 || e.caps.SendSGE < 2 {
		t.Errorf("a queue pair of %+v", e.caps)
	}
	e.mem, err = unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	check(err)
	e.base = uint64(uintptr(unsafe.Pointer(&e.mem[0])))
	e.mr, e.lkey, e.rkey, err = lib.RegMR(e.pd, uintptr(e.base), 1<<20, accessLocalWrite|accessRemoteRead|accessRemoteWrite|accessMWBind)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, errNotSupported) { // no windows here
		e.mr, e.lkey, e.rkey, err = lib.RegMR(e.pd, uintptr(e.base), 1<<20, accessLocalWrite|accessRemoteRead|accessRemoteWrite)
	}
	check(err)
	return e
}

// close ends it in the order that the table asks for.
func (e *end) close() {
	e.t.Helper()
	steps := []error{e.lib.ErrorQP(e.qp), e.lib.DestroyQP(e.id), e.lib.DestroyID(e.id), e.lib.DestroyCQ(e.cq), e.lib.DestroyChannel(e.ch), e.lib.DeregMR(e.mr), e.lib.DeallocPD(e.pd), unix.Munmap(e.mem)}
	for i, err := range steps {
		if err != nil {
			e.t.Errorf("step %d of the end: %v", i, err)
		}
	}
}

func (e *end) sge(offset, length int) sge {
	return sge{Addr: e.base + uint64(offset), Length: uint32(length), LKey: e.lkey}
}

func (e *end) post(wrs []sendWR, sges ...sge) {
	e.t.Helper()
	if n, err := e.lib.PostSend(e.qp, wrs, sges); err != nil || n != len(wrs) {
		e.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

func (e *end) receive(id uint64, offset, length int) {
	e.t.Helper()
	if n, err := e.lib.PostRecv(e.qp, []recvWR{{ID: id, SGEs: 1}}, []sge{e.sge(offset, length)}); err != nil || n != 1 {
		e.t.Fatalf("posted %d: %v", n, err)
	}
}

// complete waits for n completions by the channel: arm, poll again, park.
func (e *end) complete(n int) []workComp {
	e.t.Helper()
	got := make([]workComp, 0, n)
	buf := make([]workComp, 100)
	take := func() bool {
		for {
			k, err := e.lib.Poll(e.cq, buf[:min(len(buf), n-len(got))])
			if err != nil {
				e.t.Fatal(err)
			}
			got = append(got, buf[:k]...)
			if len(got) == n || k == 0 {
				return len(got) == n
			}
		}
	}
	for !take() {
		if err := e.lib.Arm(e.cq); err != nil {
			e.t.Fatal(err)
		}
		if take() {
			break
		}
		ready(e.t, e.fd)
		if k, err := e.lib.Events(e.ch); err != nil || k < 1 {
			e.t.Fatalf("%d events, %v", k, err)
		}
	}
	return got
}

// good waits for one completion, which must be of this request and a success.
func (e *end) good(id uint64) workComp {
	e.t.Helper()
	c := e.complete(1)[0]
	if c.ID != id || c.Status != wcSuccess {
		e.t.Fatalf("completion %d has status %d (vendor %#x), want %d with success", c.ID, c.Status, c.Vendor, id)
	}
	return c
}

// pair connects two ends and checks what the events say on the way.
func pair(t testing.TB) (active, passive *end, listener handle) {
	t.Helper()
	lib, dev, addr := adapter(t)
	accepts, connects := newCM(t, lib), newCM(t, lib)
	listener, err := lib.CreateID(accepts.ch)
	if err != nil {
		t.Fatal(err)
	}
	if err := lib.BindAddr(listener, netip.AddrPortFrom(addr, 0)); err != nil {
		t.Fatal(err)
	}
	if err := lib.Listen(listener, 16); err != nil {
		t.Fatal(err)
	}
	at, err := lib.Where(listener)
	if err != nil || at.Local.Port() == 0 || at.Local.Addr() != addr {
		t.Fatalf("listens at %+v, %v", at, err)
	}
	id, err := lib.CreateID(connects.ch)
	if err != nil {
		t.Fatal(err)
	}
	if dev.Kind == kindIB {
		if err := errors.Join(lib.SetToS(id, 0x20), lib.SetAckTimeout(id, 14)); err != nil {
			t.Error(err)
		}
	}
	if err := lib.ResolveAddr(id, netip.AddrPort{}, at.Local, 5000); err != nil {
		t.Fatal(err)
	}
	connects.want(t, cmAddrResolved)
	if err := lib.ResolveRoute(id, 5000); err != nil {
		t.Fatal(err)
	}
	connects.want(t, cmRouteResolved)
	active = newEnd(t, lib, connects, id, 64)
	active.receive(1, 0, 4096)
	depth := uint8(min(4, dev.MaxReadIn, dev.MaxReadOut))
	hello := []byte("what the one says")
	if err := lib.Connect(id, connParam{Private: hello, ResponderResources: depth, InitiatorDepth: depth, Retry: 7, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	req := accepts.want(t, cmConnectRequest)
	if req.Listener != listener || req.ID == listener || req.ID == 0 || !bytes.HasPrefix(req.Private, hello) {
		t.Errorf("request %+v", req)
	}
	for _, b := range req.Private[min(len(hello), len(req.Private)):] {
		if b != 0 {
			t.Errorf("private data ends in %q", req.Private[len(hello):])
			break
		}
	}
	passive = newEnd(t, lib, accepts, req.ID, 64)
	passive.receive(1, 0, 4096)
	answer := []byte("what the other answers")
	if err := lib.Accept(req.ID, connParam{Private: answer, ResponderResources: depth, InitiatorDepth: depth, RNRRetry: 7}); err != nil {
		t.Fatal(err)
	}
	if e := connects.want(t, cmEstablished); e.ID != id || !bytes.HasPrefix(e.Private, answer) {
		t.Errorf("established %+v", e)
	}
	if e := accepts.want(t, cmEstablished); e.ID != req.ID {
		t.Errorf("established %+v", e)
	}
	for _, e := range []*end{active, passive} {
		w, err := lib.Where(e.id)
		if err != nil || w.Local.Addr() != addr || w.Remote.Addr() != addr {
			t.Errorf("%+v, %v", w, err)
		}
		if dev.Kind == kindIB && (w.MTU < 256 || w.PKey == 0 || w.GID == [16]byte{}) {
			t.Errorf("path %+v", w)
		}
	}
	t.Logf("%s on %s (%s): %+v", lib.Version(), dev.Name, dev.Driver, active.caps)
	return active, passive, listener
}

func closePair(a, p *end, listener handle) {
	a.t.Helper()
	a.close()
	p.close()
	if err := a.lib.DestroyID(listener); err != nil {
		a.t.Error(err)
	}
}

func TestAdaptersAreDescribed(t *testing.T) {
	lib, dev, addr := adapter(t)
	if dev.Name == "" || dev.Kind == kindUnknown || dev.Ports < 1 || dev.MaxQP < 1 || dev.MaxQPWR < 16 || dev.MaxSGE < 1 || dev.MaxMRSize == 0 || dev.MaxReadIn < 1 {
		t.Errorf("%+v", dev)
	}
	again, err := lib.Devices()
	if err != nil || len(again) == 0 || again[0].Dev == 0 || !slices.ContainsFunc(again, func(d deviceAttr) bool { return d == dev }) {
		t.Errorf("a second list: %+v, %v", again, err)
	}
	port, err := lib.Port(dev.Dev, 1)
	if err != nil || port.State != portActive || port.ActiveMTU < 256 || port.MaxMTU < port.ActiveMTU || port.Link == linkUnknown || port.GIDs < 1 {
		t.Errorf("%+v, %v", port, err)
	}
	if _, err := lib.Port(dev.Dev, dev.Ports+1); err == nil {
		t.Error("a port that is not there")
	}
	gids, err := lib.GIDs(dev.Dev, 1)
	if err != nil || len(gids) == 0 {
		t.Fatalf("%+v, %v", gids, err)
	}
	read, err := readGIDs(sysRoot, dev.Name, 1)
	if err != nil || !slices.Equal(gids, read) {
		t.Errorf("the library says %+v\nsysfs says %+v, %v", gids, read, err)
	}
	t.Logf("%+v\n%+v\n%+v\naddress %v", dev, port, gids, addr)
}

// Messages, Writes and Reads of all kinds go over, many in a batch, and what is wrong in a batch is told with what was posted.
func TestBatchesAreOneCall(t *testing.T) {
	a, p, listener := pair(t)
	defer closePair(a, p, listener)
	copy(a.mem[8192:], "over the fabric")
	a.post([]sendWR{{ID: 7, Op: wrSend, SGEs: 2, Flags: flagSignaled | flagSolicited}}, a.sge(8192, 5), a.sge(8197, 10))
	if c := a.good(7); c.Op != wrSend || c.Recv != 0 {
		t.Errorf("%+v", c)
	}
	if c := p.good(1); c.Recv != 1 || c.Bytes != 15 || c.Inv != 0 || string(p.mem[:15]) != "over the fabric" {
		t.Errorf("%+v, %q", c, p.mem[:15])
	}

	// More than the shim links at a time; the last is signaled.
	const many = 150
	recvs, sges := make([]recvWR, many), make([]sge, many)
	for i := range recvs {
		recvs[i], sges[i] = recvWR{ID: uint64(i), SGEs: 1}, p.sge(i*256, 256)
	}
	if n, err := p.lib.PostRecv(p.qp, recvs, sges); n != many || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	wrs := make([]sendWR, many)
	for i := range wrs {
		wrs[i], sges[i] = sendWR{ID: uint64(i), Op: wrSend, SGEs: 1}, a.sge(65536+i*256, 4)
		copy(a.mem[65536+i*256:], fmt.Sprintf("%04d", i))
	}
	wrs[many-1].Flags = flagSignaled
	a.post(wrs, sges...)
	a.good(many - 1)
	for i, c := range p.complete(many) {
		if c.ID != uint64(i) || c.Status != wcSuccess || c.Bytes != 4 || string(p.mem[i*256:i*256+4]) != fmt.Sprintf("%04d", i) {
			t.Fatalf("message %d: %+v %q", i, c, p.mem[i*256:i*256+4])
		}
	}

	// Write, Read back what it wrote elsewhere, and a message that waits for the Read.
	p.receive(22, 0, 64)
	copy(a.mem[:], bytes.Repeat([]byte("sluice"), 10000))
	a.post([]sendWR{
		{ID: 20, Op: wrWrite, SGEs: 1, RemoteAddr: p.base + 300000, RKey: p.rkey, Flags: flagSignaled},
		{ID: 21, Op: wrRead, SGEs: 1, RemoteAddr: p.base + 300000, RKey: p.rkey, Flags: flagSignaled},
		{ID: 22, Op: wrSend, SGEs: 1, Flags: flagSignaled | flagFence}, // siw refuses a Read with a fence
	}, a.sge(0, 60000), a.sge(500000, 60000), a.sge(0, 16))
	for i, c := range a.complete(3) {
		if want := []wrOp{wrWrite, wrRead, wrSend}[i]; c.Status != wcSuccess || c.Op != want {
			t.Fatalf("%+v, want %d", c, want)
		}
	}
	if !bytes.Equal(a.mem[500000:560000], a.mem[:60000]) {
		t.Error("what was read is not what was written")
	}

	p.good(22)

	// A request that is none ends the batch: what is before it goes.
	p.receive(30, 0, 64)
	n, err := a.lib.PostSend(a.qp, []sendWR{{ID: 30, Op: wrSend, Flags: flagSignaled}, {ID: 31, Op: 99}, {ID: 32, Op: wrSend}}, nil)
	if n != 1 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("posted %d: %v", n, err)
	}
	a.good(30)
	p.good(30)
	if n, err := a.lib.PostSend(a.qp, []sendWR{{Op: wrSend, SGEs: 2}}, []sge{a.sge(0, 1)}); n != 0 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("more entries than there are: posted %d: %v", n, err)
	}
	if n, err := p.lib.PostRecv(p.qp, []recvWR{{SGEs: 1}}, nil); n != 0 || !errors.Is(err, unix.EINVAL) {
		t.Errorf("more entries than there are: posted %d: %v", n, err)
	}
	if a.caps.Inline >= 16 {
		p.receive(40, 0, 64)
		a.post([]sendWR{{ID: 40, Op: wrSend, SGEs: 1, Flags: flagSignaled | flagInline}}, a.sge(0, 16))
		a.good(40)
		p.good(40)
	}
}

// A type 2 window is bound, written through, ended by the peer's Send with Invalidate, and bound again.
func TestAWindowIsBoundAndInvalidated(t *testing.T) {
	a, p, listener := pair(t)
	defer closePair(a, p, listener)
	mw, key, err := a.lib.AllocMW(a.pd)
	if errors.Is(err, errNotSupported) {
		t.Skipf("needs an adapter with windows of type 2: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { // before the protection domain goes
		if err := a.lib.DeallocMW(mw); err != nil {
			t.Error(err)
		}
	}()
	for round := range 3 {
		key = key&^0xff | (key+1)&0xff
		bind := sendWR{ID: 50, Op: wrBind, MW: uint64(mw), MR: uint64(a.mr), BindAddr: a.base + 4096, BindLen: 8192, RKey: key, BindAccess: uint32(accessRemoteWrite), Flags: flagSignaled}
		a.post([]sendWR{bind})
		if c := a.good(50); c.Op != wrBind {
			t.Errorf("%+v", c)
		}
		copy(p.mem[4096:], fmt.Sprintf("round %d", round))
		a.receive(51, 64*1024, 64)
		p.post([]sendWR{
			{ID: 52, Op: wrWrite, SGEs: 1, RemoteAddr: a.base + 4096, RKey: key, Flags: flagSignaled},
			{ID: 53, Op: wrSendInv, SGEs: 1, Inv: key, Flags: flagSignaled},
		}, p.sge(4096, 7), p.sge(0, 16))
		for _, c := range p.complete(2) {
			if c.Status != wcSuccess {
				t.Fatalf("%+v", c)
			}
		}
		if got := string(a.mem[4096:4103]); got != fmt.Sprintf("round %d", round) {
			t.Errorf("%q", got)
		}
		want := uint64(51)
		if round == 0 {
			want = 1 // the receive that was posted before the connection
		}
		if c := a.good(want); c.Inv != key {
			t.Errorf("round %d: the receive says that %#x was invalidated, not %#x: %+v", round, c.Inv, key, c)
		}
	}
	// The owner's own invalidation, of a window that is bound once more.
	key = key&^0xff | (key+1)&0xff
	a.post([]sendWR{{ID: 54, Op: wrBind, MW: uint64(mw), MR: uint64(a.mr), BindAddr: a.base + 4096, BindLen: 8192, RKey: key, BindAccess: uint32(accessRemoteWrite), Flags: flagSignaled}})
	a.good(54)
	a.post([]sendWR{{ID: 55, Op: wrLocalInv, Inv: key, Flags: flagSignaled}})
	if c := a.good(55); c.Op != wrLocalInv {
		t.Errorf("%+v", c)
	}
	// After it nothing passes.
	p.post([]sendWR{{ID: 56, Op: wrWrite, SGEs: 1, RemoteAddr: a.base + 4096, RKey: key, Flags: flagSignaled}}, p.sge(4096, 7))
	if c := p.complete(1)[0]; c.Status != wcRemAccess && c.Status != wcRemOp {
		t.Errorf("a write through a window that is no more: %+v", c)
	}
}

// A queue pair in error completes all that it has, exactly, and the peer hears of the end.
func TestAnErrorFlushesAll(t *testing.T) {
	a, p, listener := pair(t)
	defer closePair(a, p, listener)
	for i := range 20 {
		a.receive(uint64(100+i), 0, 64)
	}
	if err := a.lib.ErrorQP(a.qp); err != nil {
		t.Fatal(err)
	}
	for i, c := range a.complete(21) {
		if want := uint64(99 + i); c.Status != wcFlushed || i > 0 && c.ID != want {
			t.Errorf("%+v, want %d flushed", c, want)
		}
	}
	var wc [4]workComp
	if n, err := a.lib.Poll(a.cq, wc[:]); n != 0 || err != nil {
		t.Errorf("%d more, %v", n, err)
	}
	if err := a.lib.Disconnect(a.id); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	p.cm.want(t, cmDisconnected)
	// On InfiniBand and RoCE the other side's own word is the answer.
	if err := p.lib.Disconnect(p.id); err != nil && !errors.Is(err, unix.EINVAL) {
		t.Fatal(err)
	}
	a.cm.want(t, cmDisconnected)
}

// A dial to an address without a listener fails with a reason. A request that the listener rejects fails with the listener's words.
func TestRefusals(t *testing.T) {
	lib, _, addr := adapter(t)
	accepts, connects, other := newCM(t, lib), newCM(t, lib), newCM(t, lib)
	listener, err := lib.CreateID(accepts.ch)
	if err != nil {
		t.Fatal(err)
	}
	if err := lib.BindAddr(listener, netip.AddrPortFrom(addr, 0)); err != nil {
		t.Fatal(err)
	}
	at, err := lib.Where(listener)
	if err != nil {
		t.Fatal(err)
	}
	second, err := lib.CreateID(accepts.ch)
	if err != nil {
		t.Fatal(err)
	}
	if err := lib.BindAddr(second, at.Local); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("the address twice: %v", err)
	}
	if err := lib.DestroyID(second); err != nil {
		t.Error(err)
	}
	try := func() (handle, *end, error) {
		t.Helper()
		id, err := lib.CreateID(other.ch)
		if err != nil {
			t.Fatal(err)
		}
		if err := lib.MoveID(id, connects.ch); err != nil {
			t.Fatal(err)
		}
		if err := lib.ResolveAddr(id, netip.AddrPortFrom(addr, 0), at.Local, 5000); err != nil {
			t.Fatal(err)
		}
		connects.want(t, cmAddrResolved)
		if err := lib.ResolveRoute(id, 5000); err != nil {
			t.Fatal(err)
		}
		connects.want(t, cmRouteResolved)
		e := newEnd(t, lib, connects, id, 0)
		return id, e, lib.Connect(id, connParam{Private: []byte("may I"), ResponderResources: 1, InitiatorDepth: 1, Retry: 1, RNRRetry: 7})
	}
	id, e, err := try()
	if err == nil { // where the call waits for TCP, it has the answer
		if got := connects.next(t); got.ID != id || got.Kind != cmRejected && got.Kind != cmUnreachable && got.Kind != cmConnectError {
			t.Errorf("nobody listens: %+v", got)
		}
	} else if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	e.close()
	if err := lib.Listen(listener, 4); err != nil {
		t.Fatal(err)
	}
	if id, e, err = try(); err != nil {
		t.Fatal(err)
	}
	req := accepts.want(t, cmConnectRequest)
	if err := lib.Reject(req.ID, []byte("not you")); err != nil {
		t.Fatal(err)
	}
	if got := connects.next(t); got.ID != id || got.Kind != cmRejected || !bytes.HasPrefix(got.Private, []byte("not you")) {
		t.Errorf("rejected: %+v", got)
	}
	e.close()
	for _, id := range []handle{req.ID, listener} {
		if err := lib.DestroyID(id); err != nil {
			t.Error(err)
		}
	}
	if err := lib.Connect(0, connParam{Private: make([]byte, 256)}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("256 bytes of private data: %v", err)
	}
}

// The data path allocates nothing.
func TestPostAndPollAllocateNothing(t *testing.T) {
	a, p, listener := pair(t)
	defer closePair(a, p, listener)
	wc := make([]workComp, 16)
	wrs := []sendWR{{ID: 1, Op: wrWrite, SGEs: 2, RemoteAddr: p.base, RKey: p.rkey}, {ID: 2, Op: wrWrite, SGEs: 1, RemoteAddr: p.base, RKey: p.rkey, Flags: flagSignaled}}
	sges := []sge{a.sge(0, 100), a.sge(200, 100), a.sge(0, 64)}
	failures := 0
	got := testing.AllocsPerRun(200, func() {
		if n, err := a.lib.PostSend(a.qp, wrs, sges); n != 2 || err != nil {
			failures++
		}
		if err := a.lib.Arm(a.cq); err != nil {
			failures++
		}
		for end := time.Now().Add(patience); ; {
			n, err := a.lib.Poll(a.cq, wc)
			if err != nil || time.Now().After(end) {
				failures++
				return
			}
			if n > 0 {
				break
			}
		}
		if _, err := a.lib.Events(a.ch); err != nil {
			failures++
		}
	})
	if got != 0 || failures != 0 {
		t.Errorf("%v allocations a round, %d failures", got, failures)
	}
}

// The port's way down and up comes as events. It takes the network away: only where SLUICE_RDMA_FLAP names the interface.
func TestPortEvents(t *testing.T) {
	lib, dev, _ := adapter(t)
	netdev := os.Getenv("SLUICE_RDMA_FLAP")
	if netdev == "" {
		t.Skip("needs an interface that may go down, and SLUICE_RDMA_FLAP names none")
	}
	fd := lib.AsyncFD(dev.Dev)
	if fd < 0 {
		t.Fatal("no descriptor")
	}
	if _, ok, err := lib.Async(dev.Dev); ok || err != nil {
		t.Fatalf("an event before any: %v", err)
	}
	for _, step := range []struct {
		do    string
		want  asyncKind
		state func(portState) bool
	}{
		{"down", asyncPortError, func(s portState) bool { return s != portActive }},
		{"up", asyncPortActive, func(s portState) bool { return s == portActive }},
	} {
		if out, err := exec.Command("ip", "link", "set", netdev, step.do).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		for {
			e, ok, err := lib.Async(dev.Dev)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				ready(t, fd)
				continue
			}
			t.Logf("%s: %+v", step.do, e)
			if e.Kind == step.want {
				if e.Port != 1 || e.Text == "" {
					t.Errorf("%+v", e)
				}
				break
			}
		}
		if p, err := lib.Port(dev.Dev, 1); err != nil || !step.state(p.State) {
			t.Errorf("%s: %+v, %v", step.do, p, err)
		}
	}
}

// What a poll of an empty queue costs is what a crossing into C costs, and a little.
func BenchmarkEmptyPoll(b *testing.B) {
	a, p, listener := pair(b)
	defer closePair(a, p, listener)
	wc := make([]workComp, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := a.lib.Poll(a.cq, wc); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}
