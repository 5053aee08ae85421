package iwarp

import (
	crand "crypto/rand"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/internal/fifo"
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
	rnd  *rand.ChaCha8
	tab  []*window // open addressing with linear probing, a power of two, never more than half full
	n    int
	wins int
	// Sinks of at least the copy threshold: while there is one, the look-ahead is kept short.
	large, largeReads atomic.Int32
	reads             fifo.Ring[readSink]
}

func (s *stags) init() {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails (crypto/rand)
	s.rnd = rand.NewChaCha8(seed)
	s.tab = make([]*window, 16)
}

// fresh returns a random STag that is not in use. It is neither 0, which peers read as none, nor 1, which the
// zero-length frames of RFC 6581 carry.
func (s *stags) fresh() (uint32, uint64) {
	for {
		v := s.rnd.Uint64()
		t := uint32(v)
		if t <= 1 || s.find(t) != nil {
			continue
		}
		// 47 bits, page aligned: as good as an address to a peer that expects one, and no length makes it wrap.
		return t, s.rnd.Uint64() >> 17 &^ 4095
	}
}

func (s *stags) slot(t uint32) int { return int(t*0x9e3779b1>>4) & (len(s.tab) - 1) }

func (s *stags) find(t uint32) *window {
	for i := s.slot(t); s.tab[i] != nil; i = (i + 1) & (len(s.tab) - 1) {
		if s.tab[i].stag == t {
			return s.tab[i]
		}
	}
	return nil
}

func (s *stags) insert(w *window) {
	i := s.slot(w.stag)
	for s.tab[i] != nil {
		i = (i + 1) & (len(s.tab) - 1)
	}
	s.tab[i] = w
	s.n++
}

// remove takes w out and closes the gap behind it, so that no tombstones gather.
func (s *stags) remove(w *window) {
	mask := len(s.tab) - 1
	i := s.slot(w.stag)
	for s.tab[i] != w {
		i = (i + 1) & mask
	}
	for j := i; ; {
		s.tab[i] = nil
		for {
			j = (j + 1) & mask
			if s.tab[j] == nil {
				s.n--
				return
			}
			if home := s.slot(s.tab[j].stag); (j-home)&mask >= (j-i)&mask {
				break
			}
		}
		s.tab[i] = s.tab[j]
		i = j
	}
}

// addWindow makes room for one more window: binding it later allocates nothing.
func (s *stags) addWindow() {
	s.wins++
	if s.wins*2 < len(s.tab) {
		return
	}
	old := s.tab
	s.tab = make([]*window, 2*len(old))
	s.n = 0
	for _, w := range old {
		if w != nil {
			s.insert(w)
		}
	}
}

// kill ends the window's STag.
func (s *stags) kill(w *window) {
	if !w.valid.Load() {
		return
	}
	w.valid.Store(false)
	s.remove(w)
	if w.large {
		w.large = false
		s.large.Add(-1)
	}
}

// killAll ends every STag.
func (s *stags) killAll() {
	for _, w := range s.tab {
		if w != nil {
			w.valid.Store(false)
			w.large = false
		}
	}
	clear(s.tab)
	s.n = 0
}
