package verbs

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// window is a memory window of type 2B: one key a Bind, for the bytes bound, on one queue pair. Of the key, 24 bits are the
// adapter's and stay; 8 are ours and change with each Bind. On adapters without windows, where Options.WholeSlab allows it,
// it stands for the key of a slab, and its Binds and Invalidates touch nothing.
type window struct {
	q     *QP
	mw    handle
	rkey  uint32 // of the last Bind
	base  uint64
	gen   uint32 // Binds so far
	batch uint32 // in which the last Bind was posted
	state winState
	valid atomic.Bool
}

type winState uint8

const (
	winFree winState = iota
	winBound
	winEnding // a local Invalidate is on its way: a second one, or the peer's, must not meet it
)

const keyBits = 8

func (w *window) Remote() transport.Remote { return transport.Remote{STag: w.rkey, Off: w.base} }
func (w *window) Valid() bool              { return w.valid.Load() }

// freeLocked ends the window's key; winMu is held.
func (w *window) freeLocked() {
	w.state = winFree
	w.valid.Store(false)
}

// NewWindow makes a window. Before the connection has an adapter it is made with the adapter's other objects.
func (q *QP) NewWindow() (transport.Window, error) {
	q.build.Lock()
	defer q.build.Unlock()
	if q.dead() {
		return nil, q.why()
	}
	w := &window{q: q}
	if q.dom != nil {
		if err := q.makeWindow(w); err != nil {
			return nil, err
		}
	}
	q.winMu.Lock()
	defer q.winMu.Unlock()
	if len(q.wins) >= maxQueue {
		return nil, errors.Join(fmt.Errorf("verbs: more than %d windows of one queue pair", maxQueue), q.unmakeWindow(w))
	}
	q.wins = append(q.wins, w)
	if w.mw != 0 {
		q.byKey[w.rkey>>keyBits] = w
	}
	return w, nil
}

// makeWindowsLocked makes those that were asked for before the connection had an adapter; build is held.
func (q *QP) makeWindowsLocked() error {
	for _, w := range q.wins {
		if err := q.makeWindow(w); err != nil {
			return err
		}
		if w.mw != 0 {
			q.byKey[w.rkey>>keyBits] = w
		}
	}
	return nil
}

func (q *QP) makeWindow(w *window) error {
	if q.a.windows {
		mw, rkey, err := q.dev.tab.AllocMW(q.dom.pd)
		if err != nil {
			return fmt.Errorf("verbs: %s: allocate a memory window: %w", q.a.attr.Name, err)
		}
		w.mw, w.rkey = mw, rkey
		return nil
	}
	if !q.dev.opt.WholeSlab {
		return &WindowError{Device: q.a.attr.Name}
	}
	return q.dev.mem.expose(q.dom)
}

func (q *QP) unmakeWindow(w *window) error {
	if w.mw == 0 {
		return nil
	}
	mw := w.mw
	w.mw = 0
	return q.dev.tab.DeallocMW(mw)
}

// freeWindowsLocked gives the windows back; the queue pair is destroyed, and build is held.
func (q *QP) freeWindowsLocked() {
	q.winMu.Lock()
	defer q.winMu.Unlock()
	for _, w := range q.wins {
		w.freeLocked()
		q.dev.warn("a memory window could not be freed", q.unmakeWindow(w))
	}
}

func (q *QP) ownWindow(wr *transport.WR) (*window, error) {
	w, ok := wr.Window.(*window)
	if !ok || w.q != q {
		return nil, errForeignWindow
	}
	return w, nil
}

// joined is the one range that local is: pieces that follow one another in memory are one.
func joined(local []mem.Span) (mem.Span, error) {
	var room [2]mem.Span // so that nothing is allocated
	all := room[:0]
	for _, s := range local {
		if s.Len == 0 {
			continue
		}
		if all = mem.Join(all, s); len(all) > 1 {
			return mem.Span{}, errOnePiece
		}
	}
	if len(all) == 0 {
		return mem.Span{}, errors.New("verbs: bind of a window to no memory")
	}
	return all[0], nil
}

// bindLocked prepares a Bind with the window's next key; sq is held.
func (q *QP) bindLocked(wr *transport.WR, e *sqEntry, hw *sendWR) (soft bool, err error) {
	w, err := q.ownWindow(wr)
	if err != nil {
		return false, err
	}
	span, err := joined(wr.Local)
	if err != nil {
		return false, err
	}
	table := &q.dom.local
	if w.mw == 0 {
		table = &q.dom.open
	}
	reg, err := table.Load().find(span)
	if err != nil {
		return false, err
	}
	q.winMu.Lock()
	defer q.winMu.Unlock()
	if w.state == winBound {
		return false, errBound
	}
	w.base = reg.addr + uint64(span.Off)
	w.gen++
	w.state = winBound
	w.valid.Store(true)
	if w.mw == 0 {
		w.rkey = reg.rkey
		return true, nil
	}
	w.rkey = w.rkey&^(1<<keyBits-1) | (w.rkey+1)&(1<<keyBits-1)
	if w.rkey == 0 {
		w.rkey++ // peers read 0 as none
	}
	hw.Op, hw.MW, hw.MR, hw.RKey = wrBind, uint64(w.mw), uint64(reg.mr), w.rkey
	hw.BindAddr, hw.BindLen = w.base, uint64(span.Len)
	if wr.Access&transport.RemoteRead != 0 {
		hw.BindAccess |= uint32(accessRemoteRead)
	}
	if wr.Access&transport.RemoteWrite != 0 {
		hw.BindAccess |= uint32(accessRemoteWrite)
	}
	e.win, e.gen, e.size = w, w.gen, uint32(span.Len)
	w.batch = q.sq.batch
	return false, nil
}

// invalidateLocked prepares a local Invalidate; sq is held. A key that the peer has ended is dead already, and a second end of it
// is an error of ours to most adapters and worse to the kernel's rxe: completions that have come are looked at first.
func (q *QP) invalidateLocked(wr *transport.WR, e *sqEntry, hw *sendWR) (soft bool, err error) {
	w, err := q.ownWindow(wr)
	if err != nil {
		return false, err
	}
	if w.mw != 0 {
		q.reapLocked()
	}
	q.winMu.Lock()
	defer q.winMu.Unlock()
	switch {
	case w.state == winEnding:
		return false, errors.New("verbs: a window is invalidated twice")
	case w.state == winFree:
		return true, nil
	case w.mw == 0:
		w.freeLocked()
		return true, nil
	}
	w.state = winEnding
	hw.Op, hw.Inv = wrLocalInv, w.rkey
	e.win, e.gen = w, w.gen
	return false, nil
}

// endedLocked notes the end of a key by a Send with Invalidate of the peer's; pollMu is held. It reports whether there was such a key.
func (q *QP) endedLocked(key uint32) bool {
	q.winMu.Lock()
	defer q.winMu.Unlock()
	w := q.byKey[key>>keyBits]
	if w == nil || w.rkey != key || !w.valid.Load() {
		return false
	}
	w.freeLocked()
	return true
}

// retireWindowLocked ends a Bind or an Invalidate; pollMu is held.
func (q *QP) retireWindowLocked(e *sqEntry, ok bool) {
	q.winMu.Lock()
	defer q.winMu.Unlock()
	if e.win.gen != e.gen {
		return // bound again since
	}
	if e.op == transport.OpInvalidate && ok && e.win.state == winEnding || e.op == transport.OpBind && !ok {
		e.win.freeLocked()
	}
}
