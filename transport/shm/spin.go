package shm

import (
	"runtime"
	"time"
)

// spinner decides whether it is worth while to look again before the owner parks: where the other side is at work on another processor it
// answers within microseconds, and a bell costs both sides some.
type spinner struct {
	want   uint64 // see QP.wantLocked
	acked  uint64
	misses int // looks in a row that found nothing
	skip   int // parkings until the next look
}

const (
	looks     = 32 // between two looks at the clock, and at other goroutines
	maxMisses = 4  // looks in a row that may find nothing
	maxSkip   = 64 // parkings without a look
)

// waitsForLocked notes up to where the owner waits for the peer to take our ring. With park set it says in our region that it waits: requests
// that are posted from here on say themselves what they wait for (wantMoreLocked). eng is held.
func (q *QP) waitsForLocked(park bool) {
	s := &q.spin
	q.tx.Lock()
	defer q.tx.Unlock()
	s.want, s.acked = q.wantLocked(), q.tx.acked
	if park {
		q.own.want.Store(s.want)
		q.rx.parking = true
		q.parked.Store(true)
		q.own.park.Add(1) // odd
	}
}

// someLocked reports whether there is something for the owner to do. eng is held, and the connection is up.
func (q *QP) someLocked() bool {
	s := &q.spin
	return q.peer.tail.Load() != q.rx.head || q.peer.ended.Load() != uint32(living) || q.pending.Load() || q.peer.head.Load()-s.acked >= s.want-s.acked
}

// look looks again and again for a moment, and reports whether there is something.
func (q *QP) look() bool {
	s := &q.spin
	if q.opt.Spin <= 0 {
		return false
	}
	if s.skip > 0 {
		s.skip--
		return false
	}
	q.eng.Lock()
	defer q.leave()
	if !q.life.up() {
		return false
	}
	q.waitsForLocked(false)
	for began := time.Now(); !q.life.dead() && time.Since(began) < q.opt.Spin; {
		for range looks {
			if q.someLocked() {
				s.misses = 0
				return true
			}
		}
		runtime.Gosched()
	}
	if s.misses++; s.misses > maxMisses {
		s.skip = min(s.misses, maxSkip)
	}
	return false
}
