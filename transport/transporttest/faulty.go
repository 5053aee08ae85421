package transporttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Faults says what goes wrong on a Faulty device. The zero value is a device without faults.
type Faults struct {
	// Delay is how much later each completion is seen.
	Delay time.Duration
	// CutAfter ends a connection at the moment when this many bytes of Sends and Writes have been posted on it since
	// it was made; what goes before that byte is sent. 0 is never.
	CutAfter int64
	// CorruptEvery flips one bit in every n-th Send, Write or Read that has payload. The upper protocol's memory stays
	// as it is when it is the source. 0 is never.
	CorruptEvery int
	// ShortPolls makes Poll return one completion at a time, and now and then none although there is one.
	ShortPolls bool
	// FailDials and FailAccepts are how many of the next Dials, and of the next Accepts of a Request, fail.
	FailDials, FailAccepts int
	// Seed makes the bits that flip the same in each run.
	Seed uint64
}

// FaultyDevice is a device with faults. Its methods may be called by any goroutine.
type FaultyDevice struct {
	transport.Device

	faults  atomic.Pointer[Faults]
	dials   atomic.Int64
	accepts atomic.Int64
	flips   atomic.Int64
	cuts    atomic.Int64

	mu    sync.Mutex
	rng   *rand.Rand
	slabs []*mem.Slab // scratch
}

var _ transport.Device = (*FaultyDevice)(nil)

// Faulty wraps a device. Connections are broken from the side that uses the wrapper.
func Faulty(d transport.Device, f Faults) *FaultyDevice {
	fd := &FaultyDevice{Device: d}
	fd.Change(f)
	return fd
}

// Change replaces the faults, for connections that exist too.
func (d *FaultyDevice) Change(f Faults) {
	d.mu.Lock()
	d.rng = rand.New(rand.NewPCG(f.Seed, 0))
	d.mu.Unlock()
	d.dials.Store(int64(f.FailDials))
	d.accepts.Store(int64(f.FailAccepts))
	d.faults.Store(&f)
}

// Flipped is how many bits were flipped so far.
func (d *FaultyDevice) Flipped() int64 { return d.flips.Load() }

// Cut is how many connections were cut so far.
func (d *FaultyDevice) Cut() int64 { return d.cuts.Load() }

func (d *FaultyDevice) intn(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.IntN(n)
}

// NewQP makes a queue pair with the device's faults.
func (d *FaultyDevice) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	if err != nil {
		return nil, err
	}
	return &faultyQP{QP: q, dev: d, reads: make(map[uint64]mem.Span)}, nil
}

// Dial fails as often as Faults.FailDials says, as if there were no listener.
func (d *FaultyDevice) Dial(ctx context.Context, addr string, tq transport.QP, p transport.ConnParams) (transport.Peer, error) {
	q, ok := tq.(*faultyQP)
	if !ok {
		return transport.Peer{}, errors.New("faulty: the queue pair belongs to another device")
	}
	if d.dials.Add(-1) >= 0 {
		err := fmt.Errorf("faulty: dial %s: %w", addr, syscall.ECONNREFUSED)
		return transport.Peer{}, errors.Join(err, q.QP.Close(transport.Reason{Err: err}))
	}
	return d.Device.Dial(ctx, addr, q.QP, p)
}

// Listen listens with the device's faults.
func (d *FaultyDevice) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := d.Device.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &faultyListener{Listener: l, dev: d}, nil
}

// Close closes the device below and gives the scratch memory back.
func (d *FaultyDevice) Close() error {
	err := d.Device.Close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.slabs {
		err = errors.Join(err, s.Close())
	}
	d.slabs = nil
	return err
}

type faultyListener struct {
	transport.Listener
	dev *FaultyDevice
}

func (l *faultyListener) Accept(ctx context.Context) (transport.Request, error) {
	r, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return &faultyRequest{Request: r, dev: l.dev}, nil
}

type faultyRequest struct {
	transport.Request
	dev *FaultyDevice
}

func (r *faultyRequest) Accept(ctx context.Context, tq transport.QP, p transport.ConnParams) error {
	q, ok := tq.(*faultyQP)
	if !ok {
		return errors.New("faulty: the queue pair belongs to another device")
	}
	if r.dev.accepts.Add(-1) >= 0 {
		err := fmt.Errorf("faulty: accept: %w", syscall.ECONNRESET)
		return errors.Join(err, r.Reject(nil), q.QP.Close(transport.Reason{Err: err}))
	}
	return r.Request.Accept(ctx, q.QP, p)
}

// faultyQP is one queue pair with faults.
type faultyQP struct {
	transport.QP
	dev *FaultyDevice

	mu      sync.Mutex // guards what Post counts; held over the Post below, whose order it must not change
	posted  int64
	cut     bool
	counted int // messages with payload
	scratch *mem.Slab
	used    int
	reads   map[uint64]mem.Span // to be corrupted when they complete

	// The owner's.
	held  []heldWC
	err   error
	polls int
}

type heldWC struct {
	transport.WC
	due time.Time
}

func (q *faultyQP) Post(wrs []transport.WR) (int, error) {
	f := q.dev.faults.Load()
	if f.CutAfter == 0 && f.CorruptEvery == 0 {
		return q.QP.Post(wrs)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range wrs {
		wr := wrs[i]
		n := size(&wr)
		if out := wr.Op != transport.OpRead; out && f.CutAfter > 0 && q.posted+int64(n) > f.CutAfter && n > 0 {
			return i, q.cutLocked(&wr, int(f.CutAfter-q.posted))
		} else if out {
			q.posted += int64(n)
		}
		q.corruptLocked(f, &wr, n)
		if k, err := q.QP.Post([]transport.WR{wr}); k != 1 {
			return i, err
		}
	}
	return len(wrs), nil
}

// size is the payload of a message, 0 for what is none.
func size(wr *transport.WR) int {
	switch wr.Op {
	case transport.OpSend, transport.OpSendInv, transport.OpWrite, transport.OpRead:
	default:
		return 0
	}
	return int(mem.Total(wr.Local))
}

// cutLocked sends the first n bytes of a Write, of a Send nothing because half a message is none, and ends the link.
func (q *faultyQP) cutLocked(wr *transport.WR, n int) error {
	if !q.cut {
		q.cut = true
		q.dev.cuts.Add(1)
		if wr.Op == transport.OpWrite && n > 0 {
			part := *wr
			part.Flags &^= transport.Signaled
			part.Local = nil
			for _, s := range wr.Local {
				k := min(n, s.Len)
				part.Local = append(part.Local, s.Cut(0, k))
				n -= k
			}
			_, _ = q.QP.Post([]transport.WR{part}) // the link is about to end anyway
		}
		if a, ok := q.QP.(interface{ Abort() }); ok && n == 0 {
			a.Abort()
		}
	}
	return errors.Join(fmt.Errorf("faulty: the link was cut: %w", transport.ErrClosed), q.QP.Close(transport.Reason{}))
}

// corruptLocked replaces the source of every n-th message by a copy with one bit flipped, or marks a Read for it.
func (q *faultyQP) corruptLocked(f *Faults, wr *transport.WR, n int) {
	if f.CorruptEvery == 0 || n == 0 {
		return
	}
	q.counted++
	if q.counted%f.CorruptEvery != 0 {
		return
	}
	if wr.Op == transport.OpRead {
		if wr.Flags&transport.Signaled != 0 {
			q.reads[wr.Token] = wr.Local[0]
		}
		return
	}
	if q.scratch == nil {
		s, err := q.dev.Caps().Memory.NewSlab(scratchBytes)
		if err != nil {
			return
		}
		q.dev.mu.Lock()
		q.dev.slabs = append(q.dev.slabs, s)
		q.dev.mu.Unlock()
		if q.dev.Register(s) != nil {
			return
		}
		q.scratch = s
	}
	if q.used+n > scratchBytes {
		return
	}
	bad := mem.Span{Slab: q.scratch, Off: q.used, Len: n}
	q.used += n
	at := 0
	for _, s := range wr.Local {
		at += copy(bad.Bytes()[at:], s.Bytes())
	}
	q.flip(bad)
	wr.Local = []mem.Span{bad}
}

func (q *faultyQP) flip(s mem.Span) {
	s.Bytes()[q.dev.intn(s.Len)] ^= 1 << q.dev.intn(8)
	q.dev.flips.Add(1)
}

// pull takes completions from below.
func (q *faultyQP) pull() {
	var wc [32]transport.WC
	for q.err == nil {
		n, err := q.QP.Poll(wc[:])
		due := time.Now().Add(q.dev.faults.Load().Delay)
		for _, c := range wc[:n] {
			if c.Op == transport.OpRead {
				q.mu.Lock()
				if s, ok := q.reads[c.Token]; ok && c.Err == nil {
					q.flip(s)
				}
				delete(q.reads, c.Token)
				q.mu.Unlock()
			}
			q.held = append(q.held, heldWC{WC: c, due: due})
		}
		q.err = err
		if n < len(wc) {
			return
		}
	}
}

func (q *faultyQP) Poll(wc []transport.WC) (int, error) {
	q.pull()
	if len(q.held) == 0 {
		return 0, q.err
	}
	if q.dev.faults.Load().ShortPolls {
		q.polls++
		if q.polls%3 == 0 {
			return 0, nil
		}
		wc = wc[:min(1, len(wc))]
	}
	n, now := 0, time.Now()
	for n < len(wc) && n < len(q.held) && !q.held[n].due.After(now) {
		wc[n] = q.held[n].WC
		n++
	}
	q.held = q.held[n:]
	return n, nil
}

func (q *faultyQP) Wait(ctx context.Context) error {
	for {
		q.pull()
		if len(q.held) == 0 {
			if q.err != nil {
				return nil
			}
			if err := q.QP.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		due := q.held[0].due
		if !due.After(time.Now()) {
			return nil
		}
		early, cancel := context.WithDeadline(ctx, due)
		if q.err != nil {
			<-early.Done()
		} else {
			_ = q.QP.Wait(early) // its deadline is no error, and the caller's context is asked below
		}
		cancel()
		if err := ctx.Err(); err != nil {
			return err
		}
	}
}
