package twohosts

import (
	"net"
	"sync"
)

// Directions of a wire.
const (
	up   = iota // to the target
	down        // to the host
	ways
)

// wire carries bytes between an address of its own and a portal that may move. It can be cut, be silent in one direction or
// both, and deliver what it holds back to the target after the host has given the connection up.
type wire struct {
	l  net.Listener
	to func() string
	wg sync.WaitGroup

	mu    sync.Mutex
	moved *sync.Cond
	links map[*link]struct{}
	dead  bool       // takes no connection
	mute  [ways]bool // of new connections too
}

// link is a connection through a wire.
type link struct {
	host, target net.Conn
	held         [ways]bool
	cut          bool
	open         int // directions
}

func newWire(to func() string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{l: l, to: to, links: map[*link]struct{}{}}
	w.moved = sync.NewCond(&w.mu)
	w.wg.Go(w.accept)
	return w, nil
}

func (w *wire) addr() string { return w.l.Addr().String() }

func (w *wire) close() {
	w.l.Close()
	w.cut(true)
	w.wg.Wait()
}

func (w *wire) accept() {
	for {
		h, err := w.l.Accept()
		if err != nil {
			return
		}
		t, err := net.Dial("tcp", w.to())
		w.mu.Lock()
		if err != nil || w.dead {
			w.mu.Unlock()
			reset(h)
			if err == nil {
				reset(t)
			}
			continue
		}
		l := &link{host: h, target: t, held: w.mute, open: ways}
		w.links[l] = struct{}{}
		w.mu.Unlock()
		w.carry(l, up, h, t)
		w.carry(l, down, t, h)
	}
}

// reset ends a connection with an RST.
func reset(c net.Conn) {
	if tc, ok := c.(*net.TCPConn); ok {
		_ = tc.SetLinger(0) // of a connection that may have ended
	}
	c.Close()
}

// carry moves the bytes of one direction. What is held waits here and not in the sender, which may be gone before it arrives.
func (w *wire) carry(l *link, way int, from, to net.Conn) {
	ch := make(chan []byte, 1024)
	w.wg.Go(func() {
		defer close(ch)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				ch <- b[:n]
			}
			if err != nil {
				return
			}
		}
	})
	w.wg.Go(func() {
		var err error
		for b := range ch {
			if w.passes(l, way) && err == nil {
				_, err = to.Write(b)
			}
		}
		w.passes(l, way)
		w.mu.Lock()
		defer w.mu.Unlock()
		to.Close() // which ends the other direction as well
		if l.open--; l.open == 0 {
			delete(w.links, l)
		}
	})
}

// passes waits while a direction is held, and reports whether the link is still there.
func (w *wire) passes(l *link, way int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l.held[way] && !l.cut {
		w.moved.Wait()
	}
	return !l.cut
}

// cut ends every connection with an RST; with stay none is taken any more until mend.
func (w *wire) cut(stay bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = stay
	for l := range w.links {
		l.cut = true
		reset(l.host)
		reset(l.target)
	}
	w.moved.Broadcast()
}

// hold makes the wire silent in the directions given; later connections are so too.
func (w *wire) hold(which ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, way := range which {
		w.mute[way] = true
		for l := range w.links {
			l.held[way] = true
		}
	}
}

// strand holds what the host has sent on the connections there are, which the host loses; with away it gets no other.
func (w *wire) strand(away bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute, w.dead = [ways]bool{}, away
	for l := range w.links {
		l.held = [ways]bool{true, true}
		reset(l.host)
	}
}

// deliver passes on what is held.
func (w *wire) deliver() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for l := range w.links {
		l.held = [ways]bool{}
	}
	w.moved.Broadcast()
}

// mend ends what cut, hold and strand have begun; what is held is delivered now.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead, w.mute = false, [ways]bool{}
	for l := range w.links {
		l.held = [ways]bool{}
	}
	w.moved.Broadcast()
}
