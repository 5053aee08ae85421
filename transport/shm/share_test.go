package shm

import (
	"bytes"
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// shownTo is how many slabs of the peer's an end has mapped.
func shownTo(e *end) (n int) {
	for _, m := range e.qp.rx.seen.maps {
		if m.b != nil {
			n++
		}
	}
	return n
}

// step lets the end's engine run once.
func (e *end) step() {
	e.t.Helper()
	n, err := e.qp.Poll(e.wc[:])
	if err != nil {
		e.t.Fatal(err)
	}
	e.got = append(e.got, e.wc[:n]...)
}

// A peer is shown the slabs that requests to it have named, when they did, and no others of the device's.
func TestNothingIsShownThatNoRequestNames(t *testing.T) {
	a, b := pair(t, pairOptions{})
	small, big, window, other := a.slab(8192), a.slab(8192), a.slab(8192), a.slab(8192)
	there := b.slab(16384)
	w := b.bind(there.Cut(0, 8192), transport.RemoteWrite)
	open := a.bind(window, transport.RemoteRead)
	a.recv(9, other.Cut(0, 100))
	b.recv(1, there.Cut(8192, 4096))
	b.recv(2, there.Cut(8192, 4096))
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{small.Cut(0, inlineMax)}})
	b.ok(transport.OpRecv, 1)
	if n := shownTo(b); n != 0 {
		t.Errorf("%d slabs are shown for a message that lies in the ring", n)
	}
	a.post(transport.WR{Op: transport.OpWrite, Local: []mem.Span{big.Cut(0, 4096)}, Remote: w.Remote()}, transport.WR{Op: transport.OpSend})
	b.ok(transport.OpRecv, 2)
	if n := shownTo(b); n != 1 {
		t.Errorf("%d slabs are shown where one has been named, and one is bound but has not been read", n)
	}
	fill(window.Bytes(), 4)
	b.post(transport.WR{Op: transport.OpRead, Token: 3, Flags: transport.Signaled, Local: []mem.Span{there.Cut(0, 8192)}, Remote: open.Remote()})
	for len(b.got) == 0 {
		a.step()
		b.step()
	}
	b.ok(transport.OpRead, 3)
	same(t, "what was read", there.Bytes()[:8192], filled(8192, 4))
	if n := shownTo(b); n != 2 {
		t.Errorf("%d slabs are shown, want two", n)
	}
	if n := shownTo(a); n != 0 {
		t.Errorf("%d slabs are shown by a side that sent nothing", n)
	}
}

// A slab that is unregistered is let go of by the peer, its number is used again, and it cannot be unregistered while something names it.
func TestAWithdrawnSlabIsLetGo(t *testing.T) {
	a, b := pair(t, pairOptions{})
	there := b.slab(1 << 20)
	w := b.bind(there, transport.RemoteWrite)
	for i := range byte(5) {
		s, err := mem.Shared.NewSlab(1 << 20)
		if err == nil {
			err = a.dev.Register(s)
		}
		if err != nil {
			t.Fatal(err)
		}
		all := mem.Span{Slab: s, Len: 1 << 20}
		fill(s.Bytes(), i)
		a.post(transport.WR{Op: transport.OpWrite, Token: uint64(i), Flags: transport.Signaled, Local: []mem.Span{all}, Remote: w.Remote()})
		if err := a.dev.Unregister(s); err == nil {
			t.Error("a slab that a Write names was unregistered")
		}
		for len(a.got) == 0 {
			b.step()
			a.step()
		}
		a.ok(transport.OpWrite, uint64(i))
		same(t, "what was written", there.Bytes(), filled(1<<20, i))
		x := a.bind(all, transport.RemoteRead)
		if err := a.dev.Unregister(s); err == nil {
			t.Error("a slab that a window names was unregistered")
		}
		a.post(transport.WR{Op: transport.OpInvalidate, Window: x})
		a.step()
		if err := errors.Join(a.dev.Unregister(s), s.Close()); err != nil {
			t.Fatal(err)
		}
		if n, err := a.qp.Post([]transport.WR{{Op: transport.OpWrite, Local: []mem.Span{a.slab(4096).Cut(0, 4096)}, Remote: w.Remote()}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		b.until(func() bool { return shownTo(b) == int(i)+1 })
	}
	if n := len(b.qp.rx.seen.maps); n > 6 {
		t.Errorf("%d numbers were given where 6 slabs were shown at a time", n)
	}
	s, err := mem.Shared.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n, err := a.qp.Post([]transport.WR{{Op: transport.OpWrite, Local: []mem.Span{{Slab: s, Len: 4096}}, Remote: w.Remote()}}); n != 0 || !errors.Is(err, errUnregistered) {
		t.Errorf("a Write of memory that is not registered: %d, %v", n, err)
	}
	own, err := mem.NewSlab(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := a.dev.Register(own); err == nil {
		t.Error("private memory was registered")
	}
}

// A record that names a slab is not read from the one that had its place before, however late the reader learns of the change.
func TestAPlaceThatIsTakenAgain(t *testing.T) {
	a, b := pair(t, pairOptions{})
	there := b.slab(4096)
	w := b.bind(there, transport.RemoteWrite)
	for i := range byte(20) {
		s, err := mem.Shared.NewSlab(4096)
		if err == nil {
			err = a.dev.Register(s)
		}
		if err != nil {
			t.Fatal(err)
		}
		fill(s.Bytes(), i)
		a.post(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Local: []mem.Span{{Slab: s, Len: 4096}}, Remote: w.Remote()})
		b.step() // alone: it knows nothing of what left before
		a.ok(transport.OpWrite, 0)
		same(t, "what was written", there.Bytes(), filled(4096, i))
		if err := errors.Join(a.dev.Unregister(s), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.qp.rx.seen.maps); n != 1 {
		t.Errorf("%d places were used where one slab was shown at a time", n)
	}
}

// until runs the end's engine until f holds.
func (e *end) until(f func() bool) {
	e.t.Helper()
	for ctx := testCtx(e.t); !f(); {
		e.step()
		if ctx.Err() != nil {
			e.t.Fatal("it did not come to that")
		}
	}
}

// More slabs at once than the socket takes messages are shown all the same, and more than there may be are refused to who posts.
func TestManySlabs(t *testing.T) {
	a, b := pair(t, pairOptions{qo: transport.QPOptions{Sends: maxSlabs + 1, Recvs: 8}})
	there := b.slab(4096)
	w := b.bind(there, transport.RemoteWrite)
	var wrs []transport.WR
	var want []byte
	for i := range maxSlabs + 1 {
		s := a.slab(4096)
		fill(s.Bytes(), byte(i))
		wrs = append(wrs, transport.WR{Op: transport.OpWrite, Local: []mem.Span{s.Cut(0, 1024)}, Remote: w.Remote()})
	}
	wrs[maxSlabs-1].Flags = transport.Signaled
	want = filled(1024, byte((maxSlabs-1)%256))
	if n, err := a.qp.Post(wrs); n != maxSlabs || !errors.Is(err, errManySlabs) {
		t.Fatalf("%d of %d posted: %v", n, len(wrs), err)
	}
	ctx := testCtx(t)
	rounds := 0
	for ; len(a.got) == 0 && ctx.Err() == nil; rounds++ {
		b.step()
		a.step()
	}
	a.ok(transport.OpWrite, 0)
	if shownTo(b) != maxSlabs || !bytes.Equal(there.Bytes()[:1024], want) {
		t.Errorf("%d slabs are shown; the last Write came: %t", shownTo(b), bytes.Equal(there.Bytes()[:1024], want))
	}
	if rounds < 2 {
		t.Error("the socket took all messages at once: the test shows nothing")
	}
}

// Six messages at once meet six receives and memory for two: the rest wait in the ring until memory comes back, in order.
func TestReceivesGetTheirMemoryWhenMessagesCome(t *testing.T) {
	var free []mem.Span
	held := map[uint64]mem.Span{}
	dry := 0
	a, b := pair(t, pairOptions{source: func(token uint64) (mem.Span, bool) {
		if len(free) == 0 {
			dry++
			return mem.Span{}, false
		}
		held[token] = free[0]
		free = free[1:]
		return held[token], true
	}})
	m, there := a.slab(64<<10), b.slab(8192)
	free = []mem.Span{there.Cut(0, 4096), there.Cut(4096, 4096)}
	const n = 6
	var wrs []transport.WR
	for i := range n {
		b.recv(uint64(i), mem.Span{})
		s := m.Cut(8192+i*4096, 1000+i)
		fill(s.Bytes(), byte(i))
		wrs = append(wrs, transport.WR{Op: transport.OpSend, Token: uint64(i), Local: []mem.Span{s}})
	}
	a.post(wrs...)
	for i := range n {
		wc := b.ok(transport.OpRecv, uint64(i))
		s := held[uint64(i)]
		if want := m.Cut(8192+i*4096, 1000+i).Bytes(); !bytes.Equal(s.Bytes()[:wc.Len], want) {
			t.Fatalf("message %d of %d bytes is not what was sent", i, wc.Len)
		}
		free = append(free, s)
	}
	if dry == 0 {
		t.Error("memory was never short: the test shows nothing")
	}
	b.recv(n, mem.Span{})
	free = nil
	a.post(wrs[0])
	if err := b.drain(); !errors.Is(err, errNoMemory) {
		t.Errorf("with nothing that could bring memory back the connection ended with %v", err)
	}
}

func TestAReceiveWithoutMemoryNeedsASource(t *testing.T) {
	_, b := pair(t, pairOptions{})
	if _, err := b.qp.PostRecv([]transport.Recv{{Token: 1}}); !errors.Is(err, errNoBuf) {
		t.Error(err)
	}
	if b.qp.RecvMemory(func(uint64) (mem.Span, bool) { return mem.Span{}, false }) {
		t.Error("a connected queue pair took a source")
	}
}

// What completed before an end in order arrives; what did not is not delivered, for its memory may hold something else by then.
func TestWhatArrivesBehindAnEnd(t *testing.T) {
	for name, c := range map[string]struct {
		why  transport.Reason
		size int
		want int // messages that arrive
	}{
		"in order, in the ring": {transport.Reason{}, 100, 3},
		"in order, in a slab":   {transport.Reason{}, 4096, 0},
		"for a reason":          {transport.Reason{Err: errors.New("a reason")}, 100, 3},
		"cut":                   {transport.Reason{Cut: true}, 100, 0},
		"cut for a reason":      {transport.Reason{Cut: true, Err: errors.New("a reason")}, 100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t, pairOptions{})
			m, there := a.slab(4096), b.slab(3*4096)
			fill(m.Bytes(), 5)
			for i := range 3 {
				b.recv(uint64(i), there.Cut(i*4096, 4096))
				a.post(transport.WR{Op: transport.OpSend, Token: uint64(i), Flags: transport.Signaled, Local: []mem.Span{m.Cut(0, c.size)}})
			}
			if err := a.qp.Close(c.why); err != nil {
				t.Fatal(err)
			}
			_ = a.drain()
			good := 0
			for _, wc := range a.got {
				if wc.Err == nil {
					good++
				}
			}
			fill(m.Bytes(), 99) // the memory is ours again
			err := b.drain()
			var term *transport.TerminateError
			if errors.As(err, &term) != (c.why.Err != nil) || !errors.Is(err, transport.ErrClosed) || errors.Is(err, ErrPeerGone) {
				t.Errorf("the peer was told %v", err)
			}
			came := 0
			for _, wc := range b.got {
				if wc.Err == nil {
					same(t, "a message", there.Bytes()[wc.Token*4096:][:wc.Len], filled(4096, 5)[:c.size])
					came++
				}
			}
			if came != c.want || !c.why.Cut && came < good {
				t.Errorf("%d messages came, want %d; %d had completed", came, c.want, good)
			}
		})
	}
}
