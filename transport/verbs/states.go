package verbs

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/internal/state"
)

// A queue pair has two lives: its own, which every goroutine may end, and that of its objects at the adapter, which only its set-up and
// takeApart touch. Each is one enumeration, moved through its table alone. Where an illegal move panics (internal/state), it ends the process, as
// goroutines of the device make most moves.

// qpPhase is the life of the queue pair. It moves under life; any goroutine may read it.
type qpPhase uint8

const (
	fresh   qpPhase = iota // has nothing of the library
	adopted                // one Dial or Accept has it, and it may have objects of the library
	dying                  // has ended for the reason err; the adapter may still complete what is outstanding
	settled                // everything outstanding is with the owner, and the adapter touches no memory of it any more
)

var qpPhaseMoves = state.New("a queue pair", []string{"fresh", "adopted", "dying", "settled"}, state.Next[qpPhase]{
	fresh:   {adopted, dying},
	adopted: {dying},
	dying:   {settled},
}).Ending(settled) // the owner has its memory back, and the adapter none of it

// qpObjects is what the queue pair has at the adapter. It moves under build; any goroutine may read it. Where the objects are freed it stays.
type qpObjects uint8

const (
	none qpObjects = iota // no completion queue, so nothing to wait with
	made                  // all of them, and receives are posted
	live                  // and the peer may send, and be sent to
)

var qpObjectMoves = state.New("the objects of a queue pair", []string{"none", "made", "live"}, state.Next[qpObjects]{
	none: {made},
	made: {live},
})

// enum is an enumeration that is read without its lock.
type enum[S ~uint8] struct{ v atomic.Uint32 }

func (e *enum[S]) is() S { return S(e.v.Load()) }

// moveLocked moves by m; what guards the enumeration is held.
func (e *enum[S]) moveLocked(m *state.Machine[S], to S) {
	s := e.is()
	m.Move(&s, to)
	e.v.Store(uint32(s))
}

func (q *QP) dead() bool    { return q.phase.is() >= dying }
func (q *QP) settled() bool { return q.phase.is() == settled }
func (q *QP) made() bool    { return q.objects.is() >= made }
func (q *QP) live() bool    { return q.objects.is() == live }
