// Package stag has the STags of a queue pair: random numbers (RFC 5042 section 6.1.1) that each stand for a window while it is bound.
package stag

import (
	crand "crypto/rand"
	"math/rand/v2"
)

// Table finds windows by their STags, without an allocation once there is room for all. It is for one goroutine at a time.
type Table[W any] struct {
	rnd  *rand.ChaCha8
	tab  []entry[W] // open addressing with linear probing, a power of two, never more than half full
	n    int
	room int // windows that there may be
}

type entry[W any] struct {
	stag uint32
	w    *W // nil: free
}

// Init makes an empty table.
func (t *Table[W]) Init() {
	var seed [32]byte
	_, _ = crand.Read(seed[:]) // never fails (crypto/rand)
	t.rnd = rand.NewChaCha8(seed)
	t.tab = make([]entry[W], 16)
}

// Fresh returns a random STag that is not in use, and a base. The STag is neither 0, which peers read as none, nor 1, which the zero-length
// frames of RFC 6581 carry.
func (t *Table[W]) Fresh() (uint32, uint64) {
	for {
		s := uint32(t.rnd.Uint64())
		if s <= 1 || t.Find(s) != nil {
			continue
		}
		// 47 bits, page aligned: as good as an address to a peer that expects one, and no length makes it wrap.
		return s, t.rnd.Uint64() >> 17 &^ 4095
	}
}

// Len is how many STags are in use.
func (t *Table[W]) Len() int { return t.n }

// Room is how many windows the table has been told of.
func (t *Table[W]) Room() int { return t.room }

func (t *Table[W]) slot(s uint32) int { return int(s*0x9e3779b1>>4) & (len(t.tab) - 1) }

// Find returns the window of an STag, nil for none.
func (t *Table[W]) Find(s uint32) *W {
	for i := t.slot(s); t.tab[i].w != nil; i = (i + 1) & (len(t.tab) - 1) {
		if t.tab[i].stag == s {
			return t.tab[i].w
		}
	}
	return nil
}

// Insert puts in an STag that is not in use. There must be room (AddRoom).
func (t *Table[W]) Insert(s uint32, w *W) {
	i := t.slot(s)
	for t.tab[i].w != nil {
		i = (i + 1) & (len(t.tab) - 1)
	}
	t.tab[i] = entry[W]{s, w}
	t.n++
}

// Remove takes out an STag that is in use and closes the gap behind it, so that no tombstones gather.
func (t *Table[W]) Remove(s uint32) {
	mask := len(t.tab) - 1
	i := t.slot(s)
	for t.tab[i].stag != s || t.tab[i].w == nil {
		i = (i + 1) & mask
	}
	for j := i; ; {
		t.tab[i] = entry[W]{}
		for {
			j = (j + 1) & mask
			if t.tab[j].w == nil {
				t.n--
				return
			}
			if home := t.slot(t.tab[j].stag); (j-home)&mask >= (j-i)&mask {
				break
			}
		}
		t.tab[i] = t.tab[j]
		i = j
	}
}

// AddRoom makes room for one more window: to bind it later allocates nothing.
func (t *Table[W]) AddRoom() {
	t.room++
	if t.room*2 < len(t.tab) {
		return
	}
	old := t.tab
	t.tab = make([]entry[W], 2*len(old))
	t.n = 0
	for _, e := range old {
		if e.w != nil {
			t.Insert(e.stag, e.w)
		}
	}
}

// All calls f with each window.
func (t *Table[W]) All(f func(*W)) {
	for _, e := range t.tab {
		if e.w != nil {
			f(e.w)
		}
	}
}

// Clear takes out all.
func (t *Table[W]) Clear() {
	clear(t.tab)
	t.n = 0
}
