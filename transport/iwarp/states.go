package iwarp

import (
	"sync/atomic"

	"github.com/sluice-storage/sluice/internal/state"
)

// A queue pair has three lives: that of its connection, that of the one who sends for it, and that of the one who receives. Each is one
// enumeration, moved through its table alone. Where an illegal move panics (internal/state), one in what the owner parses ends
// this connection (QP.defect), and any other, where goroutines share what is spoiled, the process. Behind the end of a connection, of its
// stream, and when its sender is settled, the owner of memory has it back: a move from there panics in every program.

// phase is the life of the connection. It moves under tx; any goroutine may read it.
type phase uint8

const (
	idle        phase = iota // made, and given to neither Dial nor Accept
	connecting               // Dial or Accept has it, and MPA frames are under way
	established              // FPDUs go both ways
	draining                 // the socket takes nothing any more; what the peer said before is still read (RFC 5040 section 5.4)
	ended                    // was connected; the reason stands in tx.err, and every STag is dead
	abandoned                // ended before it was connected
)

var phases = state.New("an iWARP connection",
	[]string{"idle", "connecting", "established", "draining", "ended", "abandoned"},
	state.Next[phase]{
		idle:        {connecting, abandoned},
		connecting:  {established, abandoned},
		established: {draining, ended},
		draining:    {ended},
	}).Ending(ended, abandoned)

// life holds a phase.
type life struct{ p atomic.Uint32 }

func (l *life) is() phase { return phase(l.p.Load()) }

// dead reports whether the connection has ended.
func (l *life) dead() bool { return l.is() >= ended }

// wasUp reports whether it is connected or has been.
func (l *life) wasUp() bool { p := l.is(); return p >= established && p <= ended }

// up reports whether the owner still reads.
func (l *life) up() bool { p := l.is(); return p == established || p == draining }

// moveLocked goes to another phase; tx is held.
func (l *life) moveLocked(to phase) {
	p := l.is()
	phases.Move(&p, to)
	l.p.Store(uint32(p))
}

// sending says who transmits; it is guarded by tx.
type sending uint8

const (
	held         sending = iota // may not send yet: no connection, or a responder before the initiator's first FPDU (RFC 5044 section 7.1.3)
	quiet                       // no goroutine transmits
	transmitting                // one transmits for all, and lets go of the lock during the system call; others queue behind it meanwhile
	waiting                     // the socket is full: the flusher waits for it, and goes on
	settled                     // the connection has ended, and no memory is referred to any more
)

var sendings = state.New("the sender of an iWARP connection",
	[]string{"held", "quiet", "transmitting", "waiting", "settled"},
	state.Next[sending]{
		held:         {quiet, settled},
		quiet:        {transmitting, waiting, settled},
		transmitting: {quiet, waiting},
		waiting:      {quiet, settled},
	}).Ending(settled)

// parsing is where the receiver is in the stream; it is the owner's.
type parsing uint8

const (
	inHeader  parsing = iota // bytes of a header, a Read Request or a Terminate are gathered in the look-ahead
	starved                  // the header in the look-ahead begins a message that found no memory: the owner has to poll again
	inPayload                // payload goes to rx.sink
	inTrailer                // pad and CRC
	closed                   // the stream or the peer's Terminate ended it, or it broke a rule: nothing is delivered behind that
)

var parsings = state.New("the receiver of an iWARP connection",
	[]string{"in a header", "starved", "in payload", "in a trailer", "closed"},
	state.Next[parsing]{
		inHeader:  {inPayload, starved, closed},
		starved:   {inHeader, closed},
		inPayload: {inTrailer, closed},
		inTrailer: {inHeader, closed},
	}).Ending(closed)

// known is what the last read told of the socket; it is the owner's. It is no life: any may follow any.
type known uint8

const (
	unread  known = iota // there may be more
	short                // the read brought less than it could take: the next Poll need not look again
	drained              // the read found nothing: only then may the owner park, for a FIN may lie behind a short read
)
