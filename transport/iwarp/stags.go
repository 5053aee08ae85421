package iwarp

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
	large  bool // counted in stags.large
	txRefs int  // FPDUs of the transmit batch that point into mem; under tx
}

func (w *window) Remote() transport.Remote { return transport.Remote{STag: w.stag, Off: w.base} }
func (w *window) Valid() bool              { return w.valid.Load() }

// readSink is one outstanding RDMA Read of ours.
type readSink struct {
	stag     uint32
	base     uint64
	buf      []byte
	got      int
	token    uint64
	flags    transport.Flags
	internal bool // the ready-to-receive Read of the connection set-up
}

// stags is what the peer may name: bound windows, and the sinks of our outstanding Reads.
type stags struct {
	sync.Mutex
	tab stag.Table[window]
	// Sinks of at least the copy threshold: while there is one, the look-ahead is kept short.
	large, largeReads atomic.Int32
	reads             fifo.Ring[readSink]
}

// kill ends the window's STag.
func (s *stags) kill(w *window) {
	if !w.valid.Load() {
		return
	}
	w.valid.Store(false)
	s.tab.Remove(w.stag)
	if w.large {
		w.large = false
		s.large.Add(-1)
	}
}

// killAll ends every STag.
func (s *stags) killAll() {
	s.tab.All(func(w *window) {
		w.valid.Store(false)
		w.large = false
	})
	s.tab.Clear()
}
