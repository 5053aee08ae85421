package verbs

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// life goes through everything that makes and frees objects of the library. It stops at the first error, and ends what there
// is in order whatever happened.
func life(t *testing.T, s *sim) (err error) {
	slab, err := mem.NewSlab(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if cerr := slab.Close(); cerr != nil {
			t.Error(cerr)
		}
	}()
	var sides [2]*side
	for i, name := range []string{"one", "two"} {
		d, err := open(s, Options{Devices: []string{name}, ToS: 8})
		if err != nil {
			return err
		}
		defer func() {
			if cerr := d.Close(); cerr != nil {
				t.Error(cerr)
			}
		}()
		sides[i] = &side{TB: t, d: d, slab: slab}
		sides[i].newQP(transport.QPOptions{Sends: 8, Recvs: 4})
		if _, err := sides[i].qp.PostRecv([]transport.Recv{{Token: 1, Buf: sides[i].at(0, 512)}}); err != nil {
			return err
		}
		if i == 0 {
			if err := d.Register(slab); err != nil {
				return err
			}
		}
	}
	a, b := sides[0], sides[1]
	early, err := b.qp.NewWindow()
	if err != nil {
		return err
	}
	if err := b.d.Register(slab); err != nil {
		return err
	}
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		return err
	}
	late, err := b.qp.NewWindow()
	if err != nil {
		return err
	}
	err = work(a, b, early, late)
	var wg sync.WaitGroup
	for _, x := range sides {
		if cerr := x.qp.Close(transport.Reason{}); cerr != nil {
			t.Error(cerr)
		}
		wg.Go(func() {
			if _, end := x.drain(); !errors.Is(end, transport.ErrClosed) {
				t.Errorf("the end is %v", end)
			}
		})
	}
	wg.Wait()
	return errors.Join(err, a.d.Unregister(slab))
}

func work(a, b *side, early, late transport.Window) error {
	for _, w := range []transport.Window{early, late} {
		if err := b.post(transport.WR{Op: transport.OpBind, Flags: transport.Signaled, Token: 1, Window: w, Access: transport.RemoteRead | transport.RemoteWrite, Local: []mem.Span{b.at(4096, 4096)}}); err != nil {
			return err
		}
		if wc, err := b.next(); err != nil || wc.Err != nil {
			return errors.Join(err, wc.Err)
		}
		if err := a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.at(0, 4096)}, Remote: w.Remote()},
			transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 2, Local: []mem.Span{a.at(8192, 4096)}, Remote: w.Remote()},
		); err != nil {
			return err
		}
		if wc, err := a.next(); err != nil || wc.Err != nil {
			return errors.Join(err, wc.Err)
		}
	}
	got := b.parkedNext()
	perr := a.post(transport.WR{Op: transport.OpSendInv, Inv: early.Remote().STag, Local: []mem.Span{a.at(0, 48)}})
	if perr != nil {
		_ = b.qp.Close(transport.Reason{})
	}
	if err := errors.Join(perr, <-got); err != nil {
		return err
	}
	if _, err := b.qp.PostRecv([]transport.Recv{{Token: 4, Buf: b.at(0, 512)}}); err != nil {
		return err
	}
	if got, perr = b.parkedNext(), a.post(transport.WR{Op: transport.OpSend}); perr != nil {
		_ = b.qp.Close(transport.Reason{})
	}
	if err := errors.Join(perr, <-got); err != nil {
		return err
	}
	if err := b.post(transport.WR{Op: transport.OpInvalidate, Flags: transport.Signaled, Token: 3, Window: late}); err != nil {
		return err
	}
	wc, err := b.next()
	return errors.Join(err, wc.Err)
}

// Each call of the library fails once, at each of the first times that it is made: what was made before is freed, in order,
// and nothing else is.
func TestEveryCallFailsOnce(t *testing.T) {
	made := map[string]int{}
	run := func(t *testing.T, fail func(call string) error) error {
		s := newSim(t)
		s.add("one", "mlx5", "10.0.0.1")
		s.add("two", "mlx5", "10.0.0.2")
		s.fail = fail
		err := life(t, s)
		s.fail = nil
		if left := s.leaks(); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		return err
	}
	if err := run(t, func(call string) error { made[call]++; return nil }); err != nil {
		t.Fatal(err)
	}
	for _, must := range []string{"CreateQP", "DestroyQP", "RegMR", "DeregMR", "AllocMW", "DeallocMW", "Connect", "Accept", "PostSend", "PostRecv", "Arm", "Events", "DestroyID"} {
		if made[must] == 0 {
			t.Errorf("%s is never called", must)
		}
	}
	for call, n := range made {
		for k := range min(n, 8) {
			t.Run(fmt.Sprint(call, k+1), func(t *testing.T) {
				seen := 0
				err := run(t, func(c string) error {
					if c != call {
						return nil
					}
					if seen++; seen == k+1 {
						return unix.EIO
					}
					return nil
				})
				if err != nil && err.Error() == "" {
					t.Error("an error without a word")
				}
			})
		}
	}
}

// The limit of locked memory bounds a pool as its own size does: a Get waits for what comes back, no connection ends, and the log has one line.
func TestMemoryThatMayNotBeLockedIsWaitedFor(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	s, a, _ := connected(t, "mlx5", Options{Log: zap.New(core)})
	pool := mem.NewPool(64 << 20)
	if err := pool.OnSlab(a.d); err != nil {
		t.Fatal(err)
	}
	quota := pool.Quota(32 << 20)
	bufs, err := quota.GetAll(mem.SlabSize, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.fail = func(call string) error {
		if call == "RegMR" {
			return failed(libVerbs, "ibv_reg_mr", -int(unix.ENOMEM))
		}
		return nil
	}
	s.mu.Unlock()
	for range 3 {
		slab, err := mem.NewSlab(4096) // another pool's
		if err != nil {
			t.Fatal(err)
		}
		if err := a.d.Register(slab); !errors.Is(err, mem.ErrNoRoom) || !strings.Contains(err.Error(), "LimitMEMLOCK=") {
			t.Errorf("register: %v", err)
		}
		if err := slab.Close(); err != nil {
			t.Error(err)
		}
		if _, err := quota.GetAll(mem.SlabSize, nil); !errors.Is(err, mem.ErrNoMemory) {
			t.Errorf("a Get beyond the limit: %v", err)
		}
	}
	ready := make(chan struct{})
	quota.Wait(func() { close(ready) })
	for _, b := range bufs {
		b.Release()
	}
	<-ready
	if bufs, err = quota.GetAll(mem.SlabSize, nil); err != nil {
		t.Fatal(err)
	}
	a.mustPost(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 1})
	a.must(transport.OpWrite, 1)
	for _, b := range bufs {
		b.Release()
	}
	quota.Close()
	said := logs.All()
	if len(said) != 1 || !strings.Contains(fmt.Sprint(said[0].ContextMap()["error"]), "LimitMEMLOCK=") {
		t.Errorf("the log: %+v", said)
	}
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// A pool that TCP makes grow before the first connection over RDMA is bounded by what may be locked, or that connection, and each one
// after it, could not be made: it needs all of the pool's memory.
func TestAPoolThatGrowsBeforeTheFirstConnectionStaysWithinTheLimit(t *testing.T) {
	s, da, db := twoEnds(t, "mlx5", Options{})
	pool := mem.NewPool(64 << 20)
	for _, d := range []*Device{da, db} {
		if err := pool.OnSlab(d); err != nil {
			t.Fatal(err)
		}
	}
	s.lock(6) // and three more than the pool's
	quota := pool.Quota(32 << 20)
	var bufs []*mem.Buf
	for { // a host that takes all it can have
		b, err := quota.Get(mem.MaxBuf)
		if errors.Is(err, mem.ErrNoMemory) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		bufs = append(bufs, b)
	}
	if st := pool.Stats(); st.Mapped != 3*mem.SlabSize {
		t.Errorf("%d bytes are mapped", st.Mapped)
	}
	a, b := &side{TB: t, d: da}, &side{TB: t, d: db}
	a.newQP(transport.QPOptions{})
	b.newQP(transport.QPOptions{})
	if err := join(a, b, "10.0.0.2:0"); err != nil {
		t.Fatal(err)
	}
	a.mustPost(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 1})
	a.must(transport.OpWrite, 1)
	for _, x := range []*side{a, b} {
		_ = x.qp.Close(transport.Reason{})
		x.drain()
	}
	for _, b := range bufs {
		b.Release()
	}
	quota.Close()
	if err := pool.Close(); err != nil {
		t.Error(err)
	}
}

// An adapter that comes when the pools have more memory than may be locked is refused with what to do, and used when it may be.
func TestAnAdapterThatComesLaterWaitsUntilItsMemoryMayBeLocked(t *testing.T) {
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	d, err := open(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	pool := mem.NewPool(64 << 20)
	if err := pool.OnSlab(d); err != nil {
		t.Fatal(err)
	}
	var bufs []*mem.Buf // of two slabs
	for _, n := range []int{4096, mem.MaxBuf} {
		b, err := pool.Get(n)
		if err != nil {
			t.Fatal(err)
		}
		bufs = append(bufs, b)
	}
	s.add("two", "mlx5", "10.0.0.2")
	s.lock(3)
	listen := func() error {
		l, err := d.Places(within(t), "10.0.0.2:3260")
		if err == nil && (len(l) != 1 || l[0].Device != "two") {
			t.Errorf("%+v", l)
		}
		return err
	}
	for range 2 {
		if err := listen(); !errors.Is(err, mem.ErrNoRoom) || !strings.Contains(err.Error(), "two: ") || !strings.Contains(err.Error(), "LimitMEMLOCK=") {
			t.Errorf("beyond the limit: %v", err)
		}
	}
	s.lock(8)
	if err := listen(); err != nil {
		t.Error(err)
	}
	for _, b := range bufs {
		b.Release()
	}
	if err := errors.Join(pool.Close(), d.Close()); err != nil {
		t.Error(err)
	}
	if left := s.leaks(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// lock lets so many slabs be registered at a time, by all adapters together.
func (s *sim) lock(slabs int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = func(call string) error {
		n := 0
		for _, o := range s.obj {
			if _, ok := o.(*simMR); ok {
				n++
			}
		}
		if call == "RegMR" && n >= slabs {
			return failed(libVerbs, "ibv_reg_mr", -int(unix.ENOMEM))
		}
		return nil
	}
}

// An adapter that fails to make a window for a moment has windows all the same: it is used when it can, with them.
func TestAWindowThatCannotBeMadeNowIsNoLackOfWindows(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	s := newSim(t)
	s.add("one", "mlx5", "10.0.0.1")
	d, err := open(s, Options{Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	s.add("two", "mlx5", "10.0.0.2")
	s.mu.Lock()
	s.fail = func(call string) error {
		if call == "AllocMW" {
			return failed(libVerbs, "ibv_alloc_mw", -int(unix.ENOMEM))
		}
		return nil
	}
	s.mu.Unlock()
	if l, err := d.Places(within(t), "10.0.0.2:3260"); !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "two: allocate a memory window") {
		t.Errorf("%+v, %v", l, err)
	}
	s.mu.Lock()
	s.fail = nil
	s.mu.Unlock()
	if l, err := d.Places(within(t), "10.0.0.2:3260"); err != nil || len(l) != 1 || l[0].Device != "two" {
		t.Errorf("%+v, %v; the log: %+v", l, err, logs.All())
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if left := s.leaks(); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
