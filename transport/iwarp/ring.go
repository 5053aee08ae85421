package iwarp

// ring is a FIFO that grows up to its bound: what a queue pair may have outstanding is far more than what an idle one
// has. Entries are reused in place: push hands out the slot to fill. A pointer to an entry is good until the next push.
type ring[T any] struct {
	buf  []T
	head uint
	n    uint
	max  int
}

// ringStart is the room a ring begins with and is trimmed to.
const ringStart = 8

func newRing[T any](size int) ring[T] { return ring[T]{max: max(size, 1)} }

// newFixedRing has all its room at once: its entries never move, so pointers to them are good until they are popped.
func newFixedRing[T any](size int) ring[T] {
	return ring[T]{buf: make([]T, max(size, 1)), max: max(size, 1)}
}

func (r *ring[T]) len() int   { return int(r.n) }
func (r *ring[T]) full() bool { return int(r.n) == r.max }

// next returns the slot that push will hand out, with whatever it held before. The ring must not be full.
func (r *ring[T]) next() *T {
	if r.full() {
		panic("iwarp: ring overflow")
	}
	if int(r.n) == len(r.buf) {
		r.resize(min(max(2*len(r.buf), ringStart), r.max))
	}
	return &r.buf[(r.head+r.n)%uint(len(r.buf))]
}

// push returns the new last entry.
func (r *ring[T]) push() *T {
	p := r.next()
	r.n++
	return p
}

// at returns entry i from the front.
func (r *ring[T]) at(i int) *T { return &r.buf[(r.head+uint(i))%uint(len(r.buf))] }

// pop drops the front entry and returns it, valid until the next push.
func (r *ring[T]) pop() *T {
	p := &r.buf[r.head]
	r.head = (r.head + 1) % uint(len(r.buf))
	r.n--
	return p
}

// trim gives back room that the entries of now do not need.
func (r *ring[T]) trim() {
	if want := max(2*int(r.n), ringStart); len(r.buf) >= 2*want {
		r.resize(want)
	}
}

func (r *ring[T]) resize(size int) {
	b := make([]T, size)
	for i := range int(r.n) {
		b[i] = *r.at(i)
	}
	r.buf, r.head = b, 0
}
