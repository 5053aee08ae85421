package transporttest

import (
	"bytes"
	"errors"
	"math/bits"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// faultyPair is a pair of twins whose dialler has faults.
func faultyPair(t testing.TB, f Faults) (Pair, *FaultyDevice) {
	a, b := Twin()
	bad := Faulty(a, f)
	t.Cleanup(func() {
		if err := errors.Join(bad.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return Pair{Dialer: bad, Listener: b, Addr: "127.0.0.1:0"}, bad
}

func newScene(t *testing.T, f Faults) (*scene, *FaultyDevice) {
	s := &scene{TB: t}
	s.slabs[0], s.slabs[1] = s.slab(0), s.slab(0)
	var bad *FaultyDevice
	s.pair, bad = faultyPair(t, f)
	s.caps = bad.Caps()
	return s, bad
}

// What does not break a rule must not break the suite.
func TestFaultyWithoutFaultsKeepsEveryRule(t *testing.T) {
	Run(t, func(t testing.TB) Pair { p, _ := faultyPair(t, Faults{}); return p })
}

func TestFaultyShortPollsKeepEveryRule(t *testing.T) {
	Run(t, func(t testing.TB) Pair { p, _ := faultyPair(t, Faults{ShortPolls: true}); return p })
}

func TestFaultyDelayKeepsEveryRule(t *testing.T) {
	Run(t, func(t testing.TB) Pair { p, _ := faultyPair(t, Faults{Delay: 50 * time.Microsecond}); return p })
}

func TestFaultyDelayHoldsACompletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newScene(t, Faults{Delay: time.Second})
		a, b := s.connect(setup{})
		start := time.Now()
		b.recv(1, 8)
		a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.span(8)}})
		b.want(transport.OpRecv, 1)
		if d := time.Since(start); d != 0 {
			t.Fatalf("the side without faults waited %v", d)
		}
		a.want(transport.OpSend, 1)
		if d := time.Since(start); d != time.Second {
			t.Fatalf("the completion came after %v, want 1s", d)
		}
	})
}

func TestFaultyCutsAtTheByte(t *testing.T) {
	for _, at := range []int{1, 100, 4096, 70_000, 99_999} {
		s, bad := newScene(t, Faults{})
		a, b := s.connect(setup{})
		bad.Change(Faults{CutAfter: int64(at)})
		buf := b.filled(100_000, 1)
		w := b.window(transport.RemoteWrite, buf)
		n, err := a.qp.Post([]transport.WR{{Op: transport.OpWrite, Flags: transport.Signaled, Local: []mem.Span{a.filled(40_000, 2), a.filled(60_000, 3)}, Remote: w.Remote()}})
		if n != 0 || !errors.Is(err, transport.ErrClosed) {
			t.Fatalf("the Write that is cut: %d, %v", n, err)
		}
		a.ended()
		b.ended()
		if bad.Cut() != 1 {
			t.Fatalf("%d connections were cut", bad.Cut())
		}
		want := append(pattern(40_000, 2), pattern(60_000, 3)...)
		got := buf.Bytes()
		k := 0
		for k < len(got) && got[k] == want[k] {
			k++
		}
		if k > at+8 { // a byte of the old pattern may happen to equal the new one
			t.Fatalf("cut at byte %d, and %d bytes arrived", at, k)
		}
		if !bytes.Equal(got[at:], pattern(100_000, 1)[at:]) {
			t.Fatalf("bytes behind the cut arrived")
		}
	}
}

func TestFaultyCorruptsOneBitAndLeavesTheSource(t *testing.T) {
	s, bad := newScene(t, Faults{})
	a, b := s.connect(setup{})
	bad.Change(Faults{CorruptEvery: 3, Seed: 42})
	differ := func(x, y []byte) (n int) {
		for i := range x {
			n += bits.OnesCount8(x[i] ^ y[i])
		}
		return n
	}
	var total int
	for i := range uint64(9) {
		dst := b.recv(i, 1000)
		src := a.filled(1000, byte(i))
		a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: i, Local: []mem.Span{src}})
		b.want(transport.OpRecv, i)
		a.want(transport.OpSend, i)
		a.same("the source", src.Bytes(), pattern(1000, byte(i)))
		d := differ(dst.Bytes(), src.Bytes())
		if want := int(i+1) % 3; (d == 1) != (want == 0) || d > 1 {
			t.Fatalf("message %d has %d wrong bits", i, d)
		}
		total += d
	}
	bad.Change(Faults{CorruptEvery: 1})
	w := b.window(transport.RemoteRead, b.filled(500, 7))
	sink := a.span(500)
	a.post(transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 1, Local: []mem.Span{sink}, Remote: w.Remote()})
	a.want(transport.OpRead, 1)
	if d := differ(sink.Bytes(), pattern(500, 7)); d != 1 {
		t.Fatalf("the read has %d wrong bits", d)
	}
	if bad.Flipped() != int64(total)+1 {
		t.Fatalf("%d flips counted, %d seen", bad.Flipped(), total+1)
	}
}

func TestFaultyDialsAndAcceptsFailAsOftenAsSaid(t *testing.T) {
	s, _ := newScene(t, Faults{FailDials: 2})
	for range 2 {
		if _, _, err := s.tryConnectFail(setup{}); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("a dial that should fail: %v", err)
		}
		s.conns++
	}
	s.conns = 0
	s.connectFresh(t)

	s, _ = newScene(t, Faults{})
	bad := Faulty(s.pair.Listener, Faults{FailAccepts: 1})
	s.pair.Listener = bad
	if _, _, err := s.tryConnect(s.pair.Addr, setup{}); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("an accept that should fail: %v", err)
	}
	s.connect(setup{})
}

// connectFresh connects with memory that is registered again, which a twin allows.
func (s *scene) connectFresh(t *testing.T) {
	t.Helper()
	a, b := s.connect(setup{})
	b.recv(1, 8)
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.span(8)}})
	b.want(transport.OpRecv, 1)
}

func TestTwinAbortIsHeardByBothAndLosesTheRest(t *testing.T) {
	s, _ := newScene(t, Faults{})
	a, b := s.connect(setup{})
	w := b.window(transport.RemoteWrite, b.span(1<<20))
	b.pause()
	b.recv(1, 64)
	a.post(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.span(1 << 20)}, Remote: w.Remote()})
	a.qp.(*faultyQP).QP.(*qp).Abort()
	b.run()
	for _, e := range []*end{a, b} {
		err, left := e.ended()
		var term *transport.TerminateError
		if errors.As(err, &term) || len(left) != 1 || left[0].Err == nil {
			t.Fatalf("%s: ended with %v and %+v", e.name, err, left)
		}
	}
}
