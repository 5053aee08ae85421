package iwarp

// ring is a FIFO of fixed capacity. Entries are reused in place: push hands out the slot to fill.
type ring[T any] struct {
	buf  []T
	head uint
	n    uint
}

func newRing[T any](size int) ring[T] { return ring[T]{buf: make([]T, max(size, 1))} }

func (r *ring[T]) len() int   { return int(r.n) }
func (r *ring[T]) full() bool { return int(r.n) == len(r.buf) }

// push returns the new last entry with whatever it held before. The ring must not be full.
func (r *ring[T]) push() *T {
	if r.full() {
		panic("iwarp: ring overflow")
	}
	p := &r.buf[(r.head+r.n)%uint(len(r.buf))]
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
