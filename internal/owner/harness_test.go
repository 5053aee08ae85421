package owner

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// upper is a small protocol above an engine. Each message asks for one thing, by its first byte: 'a' an answer, 'w' an answer
// from work that is kept, 'r' one after a Read from the peer.
type upper struct {
	t    *testing.T
	e    Engine[work]
	mu   sync.Mutex
	slab *mem.Slab
	from transport.Remote
	recv []transport.Recv
	work func(work) // what Perform does first

	// Guarded by mu:
	peak      int
	last      uint64
	queued    map[uint64]int // Sends and Reads by token
	completed map[uint64]int
	receives  int // posted or queued, minus completed
	kept      int
	performed int
	dropped   int
	handoffs  int
	late      int
	failed    error
}

type work struct{ asked byte }

const (
	upperRecvs = 32
	tokRecv    = uint64(1) << 32
	tokSend    = uint64(2) << 32
	tokRead    = uint64(3) << 32
	tokKind    = uint64(0xff) << 32
)

func (u *upper) Completed(wcs []transport.WC, over bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	var err error
	for _, wc := range wcs {
		switch wc.Token & tokKind {
		case tokRecv:
			u.receives--
			if wc.Err != nil || over || err != nil {
				continue
			}
			r := u.recv[wc.Token&^tokKind]
			asked := r.Buf.Bytes()[0]
			u.e.RecvLocked(r)
			u.receives++
			switch asked {
			case 'a':
				u.answerLocked()
			case 'w':
				u.kept++
				u.e.KeepLocked(work{asked})
			case 'r':
				u.readLocked()
			case 'x':
				err = errors.New("the peer broke a rule")
			}
		case tokSend:
			u.completed[wc.Token]++
		case tokRead:
			u.completed[wc.Token]++
			u.e.ReadEndedLocked()
			if wc.Err == nil {
				u.kept++
				u.e.KeepLocked(work{'r'})
			}
		}
	}
	return err
}

func (u *upper) answerLocked() {
	if u.e.OverLocked() {
		return
	}
	u.last++
	tok := tokSend | u.last
	u.queued[tok]++
	u.e.SendLocked(0, transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: tok, Local: []mem.Span{{Slab: u.slab, Len: 8}}})
}

func (u *upper) readLocked() {
	u.last++
	tok := tokRead | u.last
	u.queued[tok]++
	u.e.ReadLocked(tok, u.from, mem.Span{Slab: u.slab, Off: 4096, Len: 64})
}

func (u *upper) Perform(w work, over bool) {
	if over {
		u.mu.Lock()
		u.dropped++
		u.mu.Unlock()
		return
	}
	if u.work != nil {
		u.work(w)
	}
	u.mu.Lock()
	u.performed++
	u.answerLocked()
	u.mu.Unlock()
}

func (u *upper) PeakLocked() int { return u.peak }
func (u *upper) RestLocked()     { u.e.FlushLocked() }

func (u *upper) HandedOff() {
	u.mu.Lock()
	u.handoffs++
	u.e.FlushLocked()
	u.mu.Unlock()
}

func (u *upper) LateLocked() {
	u.late++
	u.e.FlushLocked()
}

func (u *upper) FailedLocked(err error) {
	if u.failed == nil {
		u.failed = err
	}
	go u.e.QP.Close(transport.Reason{})
}

// handed is how often the connection was handed on, and how many owners came too late.
func (u *upper) handed() (handoffs, late int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.handoffs, u.late
}

// check is what must hold behind Drain, whatever happened before.
func (u *upper) check() {
	u.t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	for tok := range u.queued {
		if u.completed[tok] != 1 {
			u.t.Errorf("work request %#x: %d completions", tok, u.completed[tok])
		}
	}
	if len(u.completed) != len(u.queued) {
		u.t.Errorf("%d work requests completed, %d were queued", len(u.completed), len(u.queued))
	}
	if u.kept != u.performed+u.dropped {
		u.t.Errorf("%d pieces of work were kept, %d performed, %d dropped", u.kept, u.performed, u.dropped)
	}
	if out, _ := u.e.ReadsLocked(); out != 0 || !u.e.OverLocked() || !u.e.EmptyLocked() {
		u.t.Errorf("%d Reads under way, over %v, empty %v", out, u.e.OverLocked(), u.e.EmptyLocked())
	}
}

// pair is an engine that runs, and its peer.
type pair struct {
	*upper
	a, b  transport.Device
	qp    transport.QP // the peer's
	there *mem.Slab
	got   int // messages that the peer has
	ended error
	mine  transport.QP // the engine's, below what wraps it
	run   chan error
}

type setup struct {
	sends int // of the engine's queue pair
	peak  int
	wrap  func(transport.QP) transport.QP
	work  func(work)
}

// connect makes a pair. It is called in a bubble; end ends it.
func connect(t *testing.T, o setup) *pair {
	t.Helper()
	p := &pair{upper: &upper{t: t, peak: o.peak, work: o.work, queued: make(map[uint64]int), completed: make(map[uint64]int)}, run: make(chan error, 1)}
	p.a, p.b = transporttest.Twin()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	var err error
	p.slab, err = mem.NewSlab(64 << 10)
	must(err)
	p.there, err = mem.NewSlab(64 << 10)
	must(err)
	must(p.a.Register(p.slab))
	must(p.b.Register(p.there))
	if o.sends == 0 {
		o.sends = 128
	}
	p.mine, err = p.a.NewQP(transport.QPOptions{Sends: o.sends, Recvs: upperRecvs})
	must(err)
	p.qp, err = p.b.NewQP(transport.QPOptions{Sends: 128, Recvs: 256})
	must(err)
	for i := range upperRecvs {
		p.recv = append(p.recv, transport.Recv{Token: tokRecv | uint64(i), Buf: mem.Span{Slab: p.slab, Off: 8192 + 64*i, Len: 64}})
	}
	_, err = p.mine.PostRecv(p.recv)
	must(err)
	p.receives = upperRecvs
	for range 256 {
		_, err = p.qp.PostRecv([]transport.Recv{{Buf: mem.Span{Slab: p.there, Len: 64}}})
		must(err)
	}
	l, err := p.a.Listen(t.Context(), "127.0.0.1:0")
	must(err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(t.Context())
		if err == nil {
			err = r.Accept(t.Context(), p.mine, transport.ConnParams{ReadsOut: 4})
		}
		accepted <- err
	}()
	_, err = p.b.Dial(t.Context(), l.Addr().String(), p.qp, transport.ConnParams{ReadsIn: 4})
	must(err)
	must(<-accepted)
	must(l.Close())
	w, err := p.qp.NewWindow()
	must(err)
	_, err = p.qp.Post([]transport.WR{{Op: transport.OpBind, Local: []mem.Span{{Slab: p.there, Off: 4096, Len: 64}}, Window: w, Access: transport.RemoteRead}})
	must(err)
	p.from = w.Remote()
	qp := p.mine
	if o.wrap != nil {
		qp = o.wrap(qp)
	}
	p.e.Init(p.upper, &p.mu, qp)
	go func() {
		err := p.e.Run(context.Background())
		p.e.Drain(transport.Reason{})
		p.run <- err
	}()
	return p
}

// ask sends one message for each byte, and lets the peer's side run until nothing moves.
func (p *pair) ask(what string) {
	p.t.Helper()
	for i := range len(what) {
		s := mem.Span{Slab: p.there, Off: 8192 + i*64, Len: 64}
		s.Bytes()[0] = what[i]
		if _, err := p.qp.Post([]transport.WR{{Op: transport.OpSend, Local: []mem.Span{s}}}); err != nil {
			if !errors.Is(err, transport.ErrClosed) {
				p.t.Fatal(err)
			}
			return
		}
	}
	p.settle()
}

// settle lets both sides run until nothing moves.
func (p *pair) settle() {
	var wcs [16]transport.WC
	for idle := 0; idle < 3; idle++ {
		synctest.Wait()
		n, err := p.qp.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if wc.Op == transport.OpRecv && wc.Err == nil {
				p.got++
				idle = 0
			}
		}
		if err != nil {
			p.ended = err
			return
		}
	}
}

// drained waits until Drain has ended.
func (p *pair) drained(limit time.Duration) {
	p.t.Helper()
	select {
	case err := <-p.run:
		p.run <- err
	case <-time.After(limit):
		p.t.Error("Drain has not ended")
	}
}

// end closes the connection from the peer's side, and checks what Drain promises. It returns what Run did.
func (p *pair) end() error {
	p.t.Helper()
	p.qp.Close(transport.Reason{})
	err := <-p.run
	synctest.Wait() // owners that were late
	p.check()
	for p.ended == nil {
		p.settle()
	}
	if g := p.a.Gauges(); g.Sends != 0 || g.Receives != 0 || g.ReadSinks != 0 || g.Connections != 0 {
		p.t.Errorf("left on the device: %+v", g)
	}
	for _, d := range []transport.Device{p.a, p.b} {
		if err := d.Close(); err != nil {
			p.t.Error(err)
		}
	}
	for _, s := range []*mem.Slab{p.slab, p.there} {
		if err := s.Close(); err != nil {
			p.t.Error(err)
		}
	}
	return err
}
