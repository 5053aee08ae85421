package shm

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/internal/fifo"
	"github.com/sluice-storage/sluice/internal/stag"
	"github.com/sluice-storage/sluice/transport"
)

// window is a memory window: one STag a Bind, for exactly the bytes bound, on one QP (RFC 5042 section 6.1.1).
type window struct {
	q      *QP
	stag   uint32 // of the last Bind
	base   uint64
	mem    sgl
	access transport.Access
	gen    uint32 // Binds so far
	valid  atomic.Bool
	refs   int // Read Responses that name mem and that the peer has not taken; under tx
}

func (w *window) Remote() transport.Remote { return transport.Remote{STag: w.stag, Off: w.base} }
func (w *window) Valid() bool              { return w.valid.Load() }

// sink is one outstanding RDMA Read of ours. No STag names it: only the response to the oldest Read goes there.
type sink struct {
	part  part
	token uint64
	flags transport.Flags
}

// stags is what the peer may name, and what waits for its responses.
type stags struct {
	sync.Mutex
	tab   stag.Table[window]
	reads fifo.Ring[sink]
}

// kill ends the window's STag.
func (s *stags) kill(w *window) {
	if w.valid.Load() {
		w.valid.Store(false)
		s.tab.Remove(w.stag)
	}
}

// killAll ends every STag.
func (s *stags) killAll() {
	s.tab.All(func(w *window) { w.valid.Store(false) })
	s.tab.Clear()
}

// found is a window as it was under the lock: another goroutine may invalidate it and bind it anew the moment after.
type found struct {
	win *window
	gen uint32
	mem sgl // the bytes asked for
}

// resolution is the outcome of looking up an STag.
type resolution int

const (
	resolved resolution = iota
	noSTag
	outOfBounds
	wraps
	noAccess
)

func (r resolution) String() string {
	return [...]string{"ok", "no such STag", "outside of what was bound", "the offset wraps", "access not granted"}[r]
}

// resolve finds the n bytes at an offset of an STag's, and notes them in f.
func (s *stags) resolve(f *found, tag uint32, to uint64, n int, need transport.Access) resolution {
	s.Lock()
	defer s.Unlock()
	w := s.tab.Find(tag)
	switch {
	case w == nil || tag == 0:
		return noSTag
	case to+uint64(n) < to:
		return wraps
	case to < w.base || to-w.base > uint64(w.mem.total) || uint64(w.mem.total)-(to-w.base) < uint64(n):
		return outOfBounds
	case w.access&need == 0:
		return noAccess
	}
	f.win, f.gen = w, w.gen
	f.mem.window(&w.mem, int(to-w.base), n)
	return resolved
}

// oldest is the outstanding Read that a response is for, nil where there is none. The ring is a fixed one: entries do not move, and
// only the owner takes the front away.
func (s *stags) oldest() *sink {
	s.Lock()
	defer s.Unlock()
	if s.reads.Len() == 0 {
		return nil
	}
	return s.reads.At(0)
}
