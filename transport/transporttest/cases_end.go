package transporttest

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// outstanding leaves receives, reads and work behind a stopped peer, and returns how often each token must come.
func (a *end) outstanding(b *end) map[string]int {
	a.Helper()
	owed := make(map[string]int)
	for i := range uint64(5) {
		a.recv(i, 64)
		owed[fmt.Sprint(transport.OpRecv, i)]++
	}
	from := b.window(transport.RemoteRead, b.filled(1000, 1))
	b.pause()
	for i := range uint64(3) {
		// Unsignaled too: an error always completes.
		a.post(transport.WR{Op: transport.OpRead, Flags: transport.Signaled * transport.Flags(i&1), Token: 10 + i, Local: []mem.Span{a.span(1000)}, Remote: from.Remote()})
		owed[fmt.Sprint(transport.OpRead, 10+i)]++
	}
	a.post(transport.WR{Op: transport.OpWrite, Flags: transport.Fence, Token: 20})
	owed[fmt.Sprint(transport.OpWrite, 20)]++
	return owed
}

// settled checks that the end returned exactly what it owed, each with an error. An adapter answers Reads although its owner has
// stopped: there they, and the Write behind them, may have succeeded before the end.
func (e *end) settled(owed map[string]int) {
	e.Helper()
	_, left := e.ended()
	adapter := e.dev.Caps().OwnResponder
	for _, c := range left {
		if adapter && c.Err == nil && c.Op != transport.OpRecv && owed[fmt.Sprint(c.Op, c.Token)] > 0 {
			delete(owed, fmt.Sprint(c.Op, c.Token))
			continue
		}
		key := fmt.Sprint(c.Op, c.Token)
		if owed[key] == 0 {
			e.Fatalf("%s: a completion that nobody is owed, or twice: %+v", e.name, c)
		}
		if !errors.Is(c.Err, transport.ErrClosed) {
			e.Fatalf("%s: operation %d, token %d ended with %v, which is not ErrClosed", e.name, c.Op, c.Token, c.Err)
		}
		owed[key]--
	}
	for key, n := range owed {
		if n != 0 && !(adapter && !strings.HasPrefix(key, fmt.Sprint(transport.OpRecv))) {
			e.Fatalf("%s: operation and token %s never came back", e.name, key)
		}
	}
	e.done = nil
	e.got = nil
	e.closed()
}

func closeReturnsAll(s *scene) {
	a, b := s.connect(setup{})
	w := a.window(transport.RemoteWrite, a.span(64))
	owed := a.outstanding(b)
	if err := a.qp.Close(transport.Reason{}); err != nil {
		s.Fatal(err)
	}
	a.settled(owed)
	if w.Valid() {
		s.Fatal("a window outlives its queue pair")
	}
	b.run()
	b.ended()
}

func peerClose(s *scene) {
	a, b := s.connect(setup{})
	w := a.window(transport.RemoteWrite, a.span(64))
	owed := a.outstanding(b)
	if err := b.qp.Close(transport.Reason{}); err != nil {
		s.Fatal(err)
	}
	b.run()
	b.ended()
	a.settled(owed)
	if w.Valid() {
		s.Fatal("a window outlives its connection")
	}
}

func closeOrderly(s *scene) {
	for range 20 {
		a, b := s.connect(setup{})
		const n = 150_000
		buf := b.span(n)
		w := b.window(transport.RemoteWrite, buf)
		last := b.recv(1, 64)
		a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(n, 6)}, Remote: w.Remote()},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.filled(48, 7)}})
		a.want(transport.OpSend, 1)
		// A logout response is the last word, and it is heard.
		if err := a.qp.Close(transport.Reason{}); err != nil {
			s.Fatal(err)
		}
		if _, left := b.ended(); len(left) != 1 || left[0].Err != nil || left[0].Len != 48 {
			s.Fatalf("what was sent before an orderly close arrived as %+v", left)
		}
		b.same("the last send", last.Bytes()[:48], pattern(48, 7))
		b.same("the write before it", buf.Bytes(), pattern(n, 6))
		a.used, b.used = 0, 0
	}
}

func closeReason(s *scene) {
	for _, reason := range []error{
		&transport.TerminateError{Layer: transport.LayerRDMAP, Type: 2, Code: 0xff, Clause: "RFC 7145 section 7.2", Detail: "made up"},
		errors.New("the upper protocol is tired"),
	} {
		a, b := s.connect(setup{})
		b.recv(1, 64)
		if err := a.qp.Close(transport.Reason{Err: reason}); err != nil {
			s.Fatal(err)
		}
		a.ended()
		err, left := b.ended()
		var term *transport.TerminateError
		if !errors.As(err, &term) || !term.Remote {
			s.Fatalf("closed for %q, and the peer heard %v", reason, err)
		}
		if want, ok := reason.(*transport.TerminateError); ok && !errors.Is(err, want) { //nolint:errorlint // it is not wrapped
			s.Fatalf("closed for %v, and the peer heard %v", want, err)
		}
		if len(left) != 1 || left[0].Err == nil {
			s.Fatalf("the peer's receive came back as %+v", left)
		}
	}
}

func closeMany(s *scene) {
	a, b := s.connect(setup{})
	for i := range uint64(8) {
		a.recv(i, 64)
	}
	src := a.span(64)
	w := b.window(transport.RemoteWrite, b.span(64))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range 16 {
		wg.Go(func() {
			<-start
			for range 4 {
				if i%4 == 0 {
					_, err := a.qp.Post([]transport.WR{{Op: transport.OpWrite, Local: []mem.Span{src}, Remote: w.Remote()}})
					if err != nil && !errors.Is(err, transport.ErrClosed) {
						s.Errorf("post beside a close: %v", err)
					}
					continue
				}
				if err := a.qp.Close(transport.Reason{}); err != nil {
					s.Errorf("close: %v", err)
				}
			}
		})
	}
	close(start)
	wg.Wait()
	_, left := a.ended()
	seen := make(map[uint64]bool)
	for _, c := range left {
		if c.Op == transport.OpRecv {
			if seen[c.Token] || c.Err == nil {
				s.Fatalf("a receive came twice, or well: %+v", c)
			}
			seen[c.Token] = true
		}
	}
	if len(seen) != 8 {
		s.Fatalf("%d of 8 receives came back", len(seen))
	}
	b.ended()
	a.done, a.got = nil, nil
	a.closed()
}

func noByteAfter(s *scene) {
	const n = 256 << 10
	for round := range byte(8) {
		a, b := s.connect(setup{})
		buf, in := b.span(n), b.recv(1, n)
		w := b.window(transport.RemoteWrite, buf)
		sink := b.span(n)
		from := a.window(transport.RemoteRead, a.filled(n, 5))
		src := a.filled(n, 6)
		b.post(transport.WR{Op: transport.OpRead, Local: []mem.Span{sink}, Remote: from.Remote()})
		started := make(chan struct{})
		pushed := make(chan struct{})
		go func() { // keeps writing until the connection is gone
			defer close(pushed)
			for i := 0; ; i++ {
				_, err := a.qp.Post([]transport.WR{{Op: transport.OpWrite, Local: []mem.Span{src}, Remote: w.Remote()}})
				if err != nil && !errors.Is(err, transport.ErrQueueFull) {
					return
				}
				if i == int(round) {
					close(started)
				}
				runtime.Gosched()
			}
		}()
		<-started
		if err := b.qp.Close(transport.Reason{}); err != nil {
			s.Fatal(err)
		}
		b.ended()
		if w.Valid() {
			s.Fatal("a window outlives its queue pair")
		}
		// From here the memory is the upper protocol's, and the peer still pushes.
		for i, sp := range []mem.Span{buf, in, sink} {
			fill(sp.Bytes(), byte(100+i))
		}
		<-pushed
		a.ended()
		for i, sp := range []mem.Span{buf, in, sink} {
			b.same("memory after the last completion", sp.Bytes(), pattern(n, byte(100+i)))
		}
		a.used, b.used = 0, 0
	}
}

func closeUnconnected(s *scene) {
	a := s.end(0, s.pair.Dialer, transport.QPOptions{})
	a.recv(1, 64)
	a.recv(2, 64)
	if err := errors.Join(a.qp.Close(transport.Reason{}), a.qp.Close(transport.Reason{})); err != nil {
		s.Fatal(err)
	}
	a.run()
	if _, left := a.ended(); len(left) != 2 || left[0].Token != 1 || left[1].Token != 2 {
		s.Fatalf("two receives came back as %+v", left)
	}
	a.done, a.got = nil, nil
	a.closed()
	s.conns++
	b := s.end(0, s.pair.Dialer, transport.QPOptions{})
	if err := b.qp.Close(transport.Reason{}); err != nil {
		s.Fatal(err)
	}
	l, err := s.pair.Listener.Listen(s.ctx(), s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			s.Error(err)
		}
	}()
	if _, err := s.pair.Dialer.Dial(s.ctx(), l.Addr().String(), b.qp, transport.ConnParams{}); !errors.Is(err, transport.ErrClosed) {
		s.Fatalf("dial with a closed queue pair: %v", err)
	}
}
