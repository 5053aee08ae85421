package transporttest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// setup is what a case wants of a connection. Zero values take the defaults below.
type setup struct {
	a, b   transport.QPOptions
	pa, pb transport.ConnParams
}

const (
	caseQueue = 64
	caseReads = 8
	helloTok  = 1 << 60
)

// end is one side of a connection and the goroutine that owns it.
type end struct {
	testing.TB
	name string
	dev  transport.Device
	qp   transport.QP
	peer transport.Peer
	slab *mem.Slab
	used int

	on func(transport.WC) bool // called by the owner for each completion first; true keeps it out of got

	mu   sync.Mutex
	got  []transport.WC
	err  error
	bell chan struct{} // closed and replaced at each change

	stop context.CancelFunc
	done chan struct{} // nil until run
}

func (s *scene) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.Cleanup(cancel)
	return ctx
}

func (s *scene) end(i int, dev transport.Device, o transport.QPOptions) *end {
	s.Helper()
	if o.Sends == 0 {
		o.Sends = caseQueue
	}
	if o.Recvs == 0 {
		o.Recvs = caseQueue
	}
	if s.conns == 0 {
		if err := dev.Register(s.slabs[i]); err != nil {
			s.Fatalf("register: %v", err)
		}
	}
	qp, err := dev.NewQP(o)
	if err != nil {
		s.Fatalf("new queue pair: %v", err)
	}
	e := &end{TB: s.TB, name: [2]string{"dialler", "listener"}[i], dev: dev, qp: qp, slab: s.slabs[i], bell: make(chan struct{})}
	s.Cleanup(e.shut)
	return e
}

// shut closes the queue pair and waits until its owner has seen the end.
func (e *end) shut() {
	if err := e.qp.Close(transport.Reason{}); err != nil {
		e.Errorf("%s: close: %v", e.name, err)
	}
	if e.done == nil {
		return
	}
	select {
	case <-e.done:
	case <-time.After(patience):
		e.Errorf("%s: the queue pair was closed and its owner never heard of it", e.name)
	}
	e.stop()
}

func (s *scene) connect(c setup) (a, b *end) {
	s.Helper()
	a, b, err := s.tryConnect(s.pair.Addr, c)
	if err != nil {
		s.Fatalf("connect: %v", err)
	}
	return a, b
}

// tryConnect makes a connection, starts the owners, and lets them say hello, the dialler first (RFC 6581 section 5: the
// responder may not be the first to send).
func (s *scene) tryConnect(addr string, c setup) (*end, *end, error) {
	s.Helper()
	if c.pa.ReadsIn == 0 && c.pa.ReadsOut == 0 && c.pb.ReadsIn == 0 && c.pb.ReadsOut == 0 {
		c.pa.ReadsIn, c.pa.ReadsOut, c.pb.ReadsIn, c.pb.ReadsOut = caseReads, caseReads, caseReads, caseReads
	}
	a, b := s.end(0, s.pair.Dialer, c.a), s.end(1, s.pair.Listener, c.b)
	s.conns++
	ctx := s.ctx()
	l, err := s.pair.Listener.Listen(ctx, addr)
	if err != nil {
		return nil, nil, err
	}
	hello := b.span(8)
	if n, err := b.qp.PostRecv([]transport.Recv{{Token: helloTok, Buf: hello}}); n != 1 || err != nil {
		s.Fatalf("listener: post a receive before the connection: %d, %v", n, err)
	}
	accepted := make(chan error, 1)
	go func() {
		accepted <- func() error {
			r, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			b.peer = r.Peer()
			return r.Accept(ctx, b.qp, c.pb)
		}()
	}()
	a.peer, err = s.pair.Dialer.Dial(ctx, l.Addr().String(), a.qp, c.pa)
	err = errors.Join(err, l.Close(), <-accepted)
	if err != nil {
		return nil, nil, err
	}
	a.run()
	b.run()
	a.recv(helloTok, 8)
	a.hello(b)
	b.hello(a)
	return a, b, nil
}

// hello is the first Send of a connection, and the answer to it.
func (a *end) hello(b *end) {
	a.Helper()
	a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: helloTok, Local: []mem.Span{a.span(8)}})
	a.want(transport.OpSend, helloTok)
	b.want(transport.OpRecv, helloTok)
}

// run starts the owner. It ends with the queue pair, or when the case does.
func (e *end) run() {
	ctx, cancel := context.WithCancel(context.Background())
	e.stop, e.done = cancel, make(chan struct{})
	go func() {
		defer close(e.done)
		var wc [16]transport.WC
		for {
			n, err := e.qp.Poll(wc[:])
			e.take(wc[:n], err)
			if err != nil {
				return
			}
			if n == 0 && e.qp.Wait(ctx) != nil {
				return
			}
		}
	}()
}

// pause stops the owner without closing anything; run may be called again.
func (e *end) pause() {
	e.stop()
	<-e.done
	e.done = nil
}

func (e *end) take(wc []transport.WC, err error) {
	if len(wc) == 0 && err == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range wc {
		if e.on == nil || !e.on(c) {
			e.got = append(e.got, c)
		}
	}
	e.err = err
	close(e.bell)
	e.bell = make(chan struct{})
}

// until waits for find to be satisfied; find runs under e.mu.
func (e *end) until(what string, find func() bool) {
	e.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		e.mu.Lock()
		ok, bell, err, left := find(), e.bell, e.err, len(e.got)
		e.mu.Unlock()
		switch {
		case ok:
			return
		case err != nil:
			e.Fatalf("%s: the connection ended while waiting for %s: %v", e.name, what, err)
		}
		select {
		case <-bell:
		case <-limit.C:
			e.Fatalf("%s: waited in vain for %s (%d other completions)", e.name, what, left)
		}
	}
}

// next is the next completion, whatever it is.
func (e *end) next() (c transport.WC) {
	e.Helper()
	e.until("a completion", func() bool {
		if len(e.got) == 0 {
			return false
		}
		c, e.got = e.got[0], e.got[1:]
		return true
	})
	return c
}

// want is the completion of one request, which must be a success.
func (e *end) want(op transport.Op, token uint64) (c transport.WC) {
	e.Helper()
	e.until("one completion", func() bool {
		for i, w := range e.got {
			if w.Op == op && w.Token == token {
				c = w
				e.got = append(e.got[:i:i], e.got[i+1:]...)
				return true
			}
		}
		return false
	})
	if c.Err != nil {
		e.Fatalf("%s: operation %d, token %d: %v", e.name, op, token, c.Err)
	}
	return c
}

// ended waits for the end of the queue pair and returns why, and the completions not taken so far.
func (e *end) ended() (error, []transport.WC) {
	e.Helper()
	select {
	case <-e.done:
	case <-time.After(patience):
		e.Fatalf("%s: waited in vain for the end of the connection", e.name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !errors.Is(e.err, transport.ErrClosed) {
		e.Fatalf("%s: the queue pair ended with %v, which is not ErrClosed", e.name, e.err)
	}
	return e.err, e.got
}

func (e *end) post(wrs ...transport.WR) {
	e.Helper()
	if n, err := e.qp.Post(wrs); n != len(wrs) || err != nil {
		e.Fatalf("%s: post: %d of %d, %v", e.name, n, len(wrs), err)
	}
}

// recv posts one receive of n bytes.
func (e *end) recv(token uint64, n int) mem.Span {
	e.Helper()
	buf := e.span(n)
	if k, err := e.qp.PostRecv([]transport.Recv{{Token: token, Buf: buf}}); k != 1 || err != nil {
		e.Fatalf("%s: post a receive: %d, %v", e.name, k, err)
	}
	return buf
}

// span is fresh memory of the end's slab, n bytes of it, with a gap before the next.
func (e *end) span(n int) mem.Span {
	e.Helper()
	if e.used+n > len(e.slab.Bytes()) {
		e.Fatalf("%s: the case needs more memory", e.name)
	}
	s := mem.Span{Slab: e.slab, Off: e.used, Len: n}
	e.used += n + 64
	return s
}

// filled is a span with a pattern of its own.
func (e *end) filled(n int, seed byte) mem.Span {
	e.Helper()
	s := e.span(n)
	fill(s.Bytes(), seed)
	return s
}

// window makes and binds a window, and waits until that is done.
func (e *end) window(access transport.Access, local ...mem.Span) transport.Window {
	e.Helper()
	w, err := e.qp.NewWindow()
	if err != nil {
		e.Fatalf("%s: new window: %v", e.name, err)
	}
	e.bind(w, access, local...)
	return w
}

const bindTok = 1<<60 + 1

func (e *end) bind(w transport.Window, access transport.Access, local ...mem.Span) {
	e.Helper()
	e.post(transport.WR{Op: transport.OpBind, Flags: transport.Signaled, Token: bindTok, Window: w, Access: access, Local: local})
	e.want(transport.OpBind, bindTok)
	if !w.Valid() {
		e.Fatalf("%s: a bound window is not valid", e.name)
	}
}

// fill writes a pattern that differs with seed and position, so that a byte out of place is a byte that is wrong.
func fill(b []byte, seed byte) {
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

func (e *end) same(what string, got, want []byte) {
	e.Helper()
	if bytes.Equal(got, want) {
		return
	}
	if len(got) != len(want) {
		e.Fatalf("%s: %s: %d bytes, want %d", e.name, what, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			e.Fatalf("%s: %s: byte %d of %d is 0x%02x, want 0x%02x", e.name, what, i, len(got), got[i], want[i])
		}
	}
}

// blamed checks that the connection ended because other broke one of rules: e found it, other was told. Where the device has
// no Terminate the end is all there is to see.
func (e *end) blamed(other *end, rules ...*transport.TerminateError) {
	e.Helper()
	for _, side := range []*end{e, other} {
		err, _ := side.ended()
		if !e.dev.Caps().Terminates {
			continue
		}
		var term *transport.TerminateError
		if !errors.As(err, &term) {
			e.Fatalf("%s: ended with %v; want a *TerminateError inside", side.name, err)
		}
		if term.Remote != (side == other) {
			e.Fatalf("%s: the error blames the wrong side: %v", side.name, err)
		}
		found := false
		for _, r := range rules {
			found = found || errors.Is(err, r)
		}
		if !found {
			e.Fatalf("%s: ended with %v; want one like %v", side.name, err, rules[0])
		}
		if side == e && term.Clause == "" {
			e.Errorf("%s: the error names no clause: %v", side.name, err)
		}
	}
}
