// Package fifo has the queue of a queue pair: what it may have outstanding is far more than what an idle one has.
package fifo

// Ring is a FIFO that grows up to its bound. Entries are reused in place: Push hands out the slot to fill. A pointer to an entry is
// good until the next Push. It is for one goroutine at a time.
type Ring[T any] struct {
	buf  []T
	head uint
	n    uint
	max  int
}

// Start is the room that a ring begins with and is trimmed to.
const Start = 8

// New makes a ring of at most size entries.
func New[T any](size int) Ring[T] { return Ring[T]{max: max(size, 1)} }

// NewFixed makes one that has all its room at once: its entries never move, so that pointers to them are good until they are popped.
func NewFixed[T any](size int) Ring[T] {
	return Ring[T]{buf: make([]T, max(size, 1)), max: max(size, 1)}
}

// Len is how many entries there are.
func (r *Ring[T]) Len() int { return int(r.n) }

// Full reports that there are as many as there may be.
func (r *Ring[T]) Full() bool { return int(r.n) == r.max }

// Max is how many entries there may be.
func (r *Ring[T]) Max() int { return r.max }

// Room is how many entries there is memory for.
func (r *Ring[T]) Room() int { return len(r.buf) }

// Next returns the slot that Push will hand out, with whatever it held before. The ring must not be full.
func (r *Ring[T]) Next() *T {
	if r.Full() {
		panic("fifo: overflow")
	}
	if int(r.n) == len(r.buf) {
		r.resize(min(max(2*len(r.buf), Start), r.max))
	}
	return &r.buf[(r.head+r.n)%uint(len(r.buf))]
}

// Push returns the new last entry.
func (r *Ring[T]) Push() *T {
	p := r.Next()
	r.n++
	return p
}

// At returns entry i from the front.
func (r *Ring[T]) At(i int) *T { return &r.buf[(r.head+uint(i))%uint(len(r.buf))] }

// Pop drops the front entry and returns it, valid until the next Push.
func (r *Ring[T]) Pop() *T {
	p := &r.buf[r.head]
	r.head = (r.head + 1) % uint(len(r.buf))
	r.n--
	return p
}

// Trim gives back room that the entries of now do not need.
func (r *Ring[T]) Trim() {
	if want := max(2*int(r.n), Start); len(r.buf) >= 2*want {
		r.resize(want)
	}
}

func (r *Ring[T]) resize(size int) {
	b := make([]T, size)
	for i := range int(r.n) {
		b[i] = *r.At(i)
	}
	r.buf, r.head = b, 0
}
