package transporttest

import (
	"bytes"
	"context"
	"errors"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func privateData(s *scene) {
	most := s.caps.MaxPrivate
	for _, n := range []struct{ a, b int }{{0, 0}, {4, 0}, {0, 4}, {8, 8}, {most, most}} {
		pa, pb := pattern(n.a, 1), pattern(n.b, 2)
		a, b := s.connect(setup{
			pa: transport.ConnParams{Private: pa, ReadsIn: 4, ReadsOut: 4},
			pb: transport.ConnParams{Private: pb, ReadsIn: 4, ReadsOut: 4},
		})
		b.same("private data at the listener", s.unpadded(b.peer.Private, n.a), pa)
		a.same("private data at the dialler", s.unpadded(a.peer.Private, n.b), pb)
		for _, e := range []*end{a, b} {
			if e.peer.Local == nil || e.peer.Remote == nil || e.peer.Remote.String() == "" {
				s.Fatalf("%s: addresses %v and %v", e.name, e.peer.Local, e.peer.Remote)
			}
		}
		if a.peer.Local.String() != b.peer.Remote.String() || a.peer.Remote.String() != b.peer.Local.String() {
			s.Fatalf("addresses do not mirror: %v-%v, %v-%v", a.peer.Local, a.peer.Remote, b.peer.Local, b.peer.Remote)
		}
	}
}

// unpadded is private data of n bytes without the zeroes that may come behind it.
func (s *scene) unpadded(b []byte, n int) []byte {
	s.Helper()
	if !s.caps.PaddedPrivate || len(b) <= n {
		return b
	}
	if len(bytes.TrimRight(b[n:], "\x00")) > 0 {
		s.Fatalf("behind %d bytes of private data: % x", n, b[n:])
	}
	return b[:n]
}

func privateTooLong(s *scene) {
	_, _, err := s.tryConnectFail(setup{pa: transport.ConnParams{Private: make([]byte, s.caps.MaxPrivate+1)}})
	if err == nil {
		s.Fatal("private data longer than Caps.MaxPrivate was taken")
	}
}

// tryConnectFail dials where no Accept waits; the dial must fail by itself.
func (s *scene) tryConnectFail(c setup) (*end, string, error) {
	s.Helper()
	a := s.end(0, s.pair.Dialer, c.a)
	ctx := s.ctx()
	l, err := s.pair.Listener.Listen(ctx, s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			s.Error(err)
		}
	}()
	_, err = s.pair.Dialer.Dial(ctx, l.Addr().String(), a.qp, c.pa)
	if err != nil {
		a.closed()
	}
	return a, l.Addr().String(), err
}

// closed checks that the queue pair is closed, by polling it from here.
func (e *end) closed() {
	e.Helper()
	e.run()
	_, left := e.ended()
	for _, c := range left {
		if c.Err == nil {
			e.Fatalf("%s: a request of a closed queue pair succeeded: %+v", e.name, c)
		}
	}
	for range 3 {
		if n, err := e.qp.Poll(make([]transport.WC, 4)); n != 0 || !errors.Is(err, transport.ErrClosed) {
			e.Fatalf("%s: poll after the end: %d, %v", e.name, n, err)
		}
	}
	if n, err := e.qp.Post([]transport.WR{{Op: transport.OpSend}}); n != 0 || !errors.Is(err, transport.ErrClosed) {
		e.Fatalf("%s: post after the end: %d, %v", e.name, n, err)
	}
	if n, err := e.qp.PostRecv([]transport.Recv{{Buf: mem.Span{Slab: e.slab, Len: 8}}}); n != 0 || !errors.Is(err, transport.ErrClosed) {
		e.Fatalf("%s: post a receive after the end: %d, %v", e.name, n, err)
	}
}

func depths(s *scene) {
	most := s.caps.MaxReads
	for _, d := range []struct{ aIn, aOut, bIn, bOut int }{{1, 1, 1, 1}, {4, 2, 8, 8}, {8, 8, 2, 4}, {most, most, most, most}, {most, 1, 1, most}} {
		a, b := s.connect(setup{
			pa: transport.ConnParams{ReadsIn: d.aIn, ReadsOut: d.aOut},
			pb: transport.ConnParams{ReadsIn: d.bIn, ReadsOut: d.bOut},
		})
		da, db := a.qp.Depth(), b.qp.Depth()
		if da.Out > db.In || db.Out > da.In {
			s.Fatalf("%+v: one side may send more Reads than the other serves: %+v, %+v", d, da, db)
		}
		if da.Out > d.aOut || db.Out > d.bOut {
			s.Fatalf("%+v: deeper than asked for: %+v, %+v", d, da, db)
		}
		if da.Out < min(d.aOut, d.bIn) || db.Out < min(d.bOut, d.aIn) {
			s.Fatalf("%+v: shallower than both sides can: %+v, %+v", d, da, db)
		}
		if b.peer.Named && (b.peer.ReadsIn != d.aIn || b.peer.ReadsOut != d.aOut) {
			s.Fatalf("%+v: the listener was told %d in and %d out", d, b.peer.ReadsIn, b.peer.ReadsOut)
		}
	}
}

func depthZero(s *scene) {
	a, b := s.connect(setup{
		pa: transport.ConnParams{ReadsIn: 4, ReadsOut: 0},
		pb: transport.ConnParams{ReadsIn: 4, ReadsOut: 4},
	})
	w := b.window(transport.RemoteRead, b.filled(64, 1))
	n, err := a.qp.Post([]transport.WR{{Op: transport.OpRead, Local: []mem.Span{a.span(64)}, Remote: w.Remote()}})
	if n != 0 || !errors.Is(err, transport.ErrTooManyReads) {
		s.Fatalf("a Read at depth 0: %d, %v", n, err)
	}
}

func reject(s *scene) {
	for _, n := range []int{0, 4, s.caps.MaxPrivate} {
		private := pattern(n, 3)
		a := s.end(0, s.pair.Dialer, transport.QPOptions{})
		s.conns++
		ctx := s.ctx()
		l, err := s.pair.Listener.Listen(ctx, s.pair.Addr)
		if err != nil {
			s.Fatal(err)
		}
		rejected := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = r.Reject(private)
			}
			rejected <- err
		}()
		_, err = s.pair.Dialer.Dial(ctx, l.Addr().String(), a.qp, transport.ConnParams{})
		if e := <-rejected; e != nil {
			s.Fatal(e)
		}
		var no *transport.RejectedError
		if !errors.As(err, &no) || !bytes.Equal(s.unpadded(no.Private, n), private) {
			s.Fatalf("a refusal with %d bytes of private data came as %v", n, err)
		}
		a.closed()
		if err := l.Close(); err != nil {
			s.Fatal(err)
		}
	}
}

func dialNobody(s *scene) {
	ctx := s.ctx()
	l, err := s.pair.Listener.Listen(ctx, s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	if err := l.Close(); err != nil {
		s.Fatal(err)
	}
	a := s.end(0, s.pair.Dialer, transport.QPOptions{})
	a.recv(1, 64)
	if _, err := s.pair.Dialer.Dial(ctx, l.Addr().String(), a.qp, transport.ConnParams{}); err == nil {
		s.Fatal("a dial that nobody listens to succeeded")
	}
	a.closed()
}

func dialCancelled(s *scene) {
	l, err := s.pair.Listener.Listen(s.ctx(), s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			s.Error(err)
		}
	}()
	a := s.end(0, s.pair.Dialer, transport.QPOptions{})
	ctx, cancel := context.WithCancel(s.ctx())
	requests := make(chan transport.Request, 1)
	go func() {
		// Cancelled when the request has been read and is not answered: the dial cannot be anywhere but waiting.
		defer close(requests)
		defer cancel()
		if r, err := l.Accept(s.ctx()); err == nil {
			requests <- r
		}
	}()
	_, err = s.pair.Dialer.Dial(ctx, l.Addr().String(), a.qp, transport.ConnParams{})
	if !errors.Is(err, context.Canceled) {
		s.Fatalf("dial, cancelled: %v", err)
	}
	a.closed()
	if r := <-requests; r != nil {
		_ = r.Reject(nil) // it may say that the peer is gone, and it need not know
	}

	s.conns++
	a = s.end(0, s.pair.Dialer, transport.QPOptions{})
	if _, err = s.pair.Dialer.Dial(ctx, l.Addr().String(), a.qp, transport.ConnParams{}); !errors.Is(err, context.Canceled) {
		s.Fatalf("dial with a dead context: %v", err)
	}
	a.closed()
}

func acceptCancelled(s *scene) {
	l, err := s.pair.Listener.Listen(s.ctx(), s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.ctx())
	got := make(chan error, 1)
	go func() {
		_, err := l.Accept(ctx)
		got <- err
	}()
	cancel()
	if err := <-got; !errors.Is(err, context.Canceled) {
		s.Fatalf("accept, cancelled: %v", err)
	}
	if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
		s.Fatalf("accept with a dead context: %v", err)
	}
	// The listener is none the worse.
	a := s.end(0, s.pair.Dialer, transport.QPOptions{})
	b := s.end(1, s.pair.Listener, transport.QPOptions{})
	go func() {
		r, err := l.Accept(s.ctx())
		if err == nil {
			err = r.Accept(s.ctx(), b.qp, transport.ConnParams{})
		}
		got <- err
	}()
	if _, err := s.pair.Dialer.Dial(s.ctx(), l.Addr().String(), a.qp, transport.ConnParams{}); err != nil {
		s.Fatal(err)
	}
	if err := errors.Join(<-got, l.Close()); err != nil {
		s.Fatal(err)
	}
}

// acceptClosed has a request answered by a queue pair that has been closed meanwhile: the dialler hears of it.
func acceptClosed(s *scene) {
	l, err := s.pair.Listener.Listen(s.ctx(), s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	a := s.end(0, s.pair.Dialer, transport.QPOptions{})
	b := s.end(1, s.pair.Listener, transport.QPOptions{})
	got := make(chan error, 1)
	go func() {
		r, err := l.Accept(s.ctx())
		if err == nil {
			err = b.qp.Close(transport.Reason{})
		}
		if err != nil {
			got <- err
		} else if r.Accept(s.ctx(), b.qp, transport.ConnParams{}) == nil {
			got <- errors.New("a closed queue pair was connected")
		}
		close(got)
	}()
	if _, err := s.pair.Dialer.Dial(s.ctx(), l.Addr().String(), a.qp, transport.ConnParams{}); err == nil || s.ctx().Err() != nil {
		s.Fatalf("dial, accepted by a closed queue pair: %v", err)
	}
	if err := errors.Join(<-got, l.Close()); err != nil {
		s.Fatal(err)
	}
	a.closed()
	b.closed()
}

func listenerClosed(s *scene) {
	l, err := s.pair.Listener.Listen(s.ctx(), s.pair.Addr)
	if err != nil {
		s.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := l.Accept(s.ctx())
		got <- err
	}()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		s.Fatal(err)
	}
	if err := <-got; !errors.Is(err, transport.ErrClosed) {
		s.Fatalf("accept on a closed listener: %v", err)
	}
}

func ipv6(s *scene) {
	a, b, err := s.tryConnect(s.pair.Addr6, setup{})
	if err != nil {
		s.Fatal(err)
	}
	b.recv(1, 64)
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.filled(64, 1)}})
	b.want(transport.OpRecv, 1)
}

func waitCancelled(s *scene) {
	a, b := s.connect(setup{})
	a.pause() // it sits in Wait, and leaves with its context's error
	buf := a.recv(1, 64)
	b.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{b.filled(64, 9)}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 10 { // whichever Wait says, the message must not be lost
		if err := a.qp.Wait(ctx); err != nil && !errors.Is(err, context.Canceled) {
			s.Fatalf("wait with a dead context: %v", err)
		}
	}
	a.run()
	a.want(transport.OpRecv, 1)
	a.same("what came after a cancelled Wait", buf.Bytes(), pattern(64, 9))
}
