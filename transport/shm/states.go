package shm

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/internal/state"
)

// phase is the life of a queue pair's connection. It moves under tx; any goroutine may read it.
type phase uint8

const (
	idle        phase = iota // made, and given to neither Dial nor Accept
	connecting               // Dial or Accept has it, and request and reply are under way
	established              // records go both ways
	ended                    // was connected; the reason stands in tx.err, and every STag is dead
	abandoned                // ended before it was connected
)

var phases = state.New("a connection through shared memory",
	[]string{"idle", "connecting", "established", "ended", "abandoned"},
	state.Next[phase]{
		idle:        {connecting, abandoned},
		connecting:  {established, abandoned},
		established: {ended},
	})

// life holds a phase.
type life struct{ p atomic.Uint32 }

func (l *life) is() phase { return phase(l.p.Load()) }

// dead reports whether the connection has ended.
func (l *life) dead() bool { return l.is() >= ended }

// up reports whether it is connected.
func (l *life) up() bool { return l.is() == established }

// wasUp reports whether it is connected or has been.
func (l *life) wasUp() bool { p := l.is(); return p == established || p == ended }

// moveLocked goes to another phase; tx is held.
func (l *life) moveLocked(to phase) {
	p := l.is()
	phases.Move(&p, to)
	l.p.Store(uint32(p))
}

// reading is where the receiver is in the peer's ring; it is the owner's.
type reading uint8

const (
	taking  reading = iota // records are taken as they come
	starved                // the next record begins a message that found no memory: the owner has to poll again
	halted                 // the peer has ended, or has broken a rule: nothing is delivered any more
)

var readings = state.New("the receiver of a connection through shared memory",
	[]string{"taking", "starved", "halted"},
	state.Next[reading]{
		taking:  {starved, halted},
		starved: {taking, halted},
	})

// shared is where a slab of ours stands with the peer; it is guarded by tx.
type shared uint8

const (
	unshown   shared = iota // the peer has never been given it
	queued                  // a message with its file is to be sent, before anything that names it
	shown                   // the message has been sent: the peer can read all of the slab from here to the end of the connection
	withdrawn               // the peer has been told to let go of it; the number may stand for another slab
)

var showings = state.New("a slab of a connection through shared memory",
	[]string{"unshown", "queued", "shown", "withdrawn"},
	state.Next[shared]{
		unshown:   {queued},
		queued:    {shown, withdrawn},
		shown:     {withdrawn},
		withdrawn: {queued},
	})
