// Package flight is the flight recorder of a connection: its last events, and apart from them its last commands, so that a busy session does not forget its
// login. Each server of sessions keeps some of those that ended. An event is rare and may format text; a command costs a store into a ring.
package flight

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/transport"
)

const (
	// Events bounds what a recorder remembers: a login of usual length and the incidents of a life.
	Events = 32
	// Commands is how many of the last commands it remembers. Both take 3 KiB a connection.
	Commands = 32

	// Kept is the number of ended sessions whose recorders are kept. An operator asks about one of the last.
	Kept = 32
)

// Recorder is the recorder of one connection.
type Recorder struct {
	mu     sync.Mutex // a leaf: taken with and without the connection's lock
	events [Events]Event
	n      uint // events so far

	// Guarded by the connection's lock.
	done  [Commands]done
	ended uint // commands so far
}

// Event is one thing that happened to a connection.
type Event struct {
	At   time.Time
	What string
}

// Command is one SCSI command.
type Command struct {
	At      time.Time // of its end, or now
	Took    time.Duration
	Tag     uint64
	LUN     uint16
	Command string
	Outcome string // a status and sense, empty while it runs
}

type done struct {
	at     time.Duration // of the end, on hist.Clock
	took   time.Duration
	tag    uint64
	sense  uint32 // key, ASC and ASCQ
	lun    uint16
	op     byte
	status scsi.Status
	silent bool
}

// Note records an event. Any goroutine may call it.
func (r *Recorder) Note(format string, a ...any) {
	e := Event{At: time.Now(), What: fmt.Sprintf(format, a...)}
	r.mu.Lock()
	r.events[r.n%Events] = e
	r.n++
	r.mu.Unlock()
}

// NotePath records how the packets of an RDMA connection go.
func (r *Recorder) NotePath(d transport.Device, q transport.QP) {
	p := transport.PathOf(d, q)
	r.Note("through %s %s port %d from %s; the initiator may reach: %s", p.Provider, p.Device, p.Port, p.GID, p.Exposure)
}

// EndLocked records the end of a command that began at a time of hist.Clock; tag is the initiator's. The connection's lock is held.
func (r *Recorder) EndLocked(c *scsi.Command, tag uint64, began time.Duration) {
	now := hist.Clock()
	d := &r.done[r.ended%Commands]
	r.ended++
	*d = done{at: now, took: now - began, tag: tag, status: c.Status, silent: c.Silent, lun: LUN(c.LUN), op: c.CDB[0]}
	if s := c.Sense; len(s) >= 14 && s[0]&0x7e == 0x70 {
		d.sense = uint32(s[2]&15)<<16 | uint32(s[12])<<8 | uint32(s[13])
	} else if len(s) >= 4 {
		d.sense = uint32(s[1]&15)<<16 | uint32(s[2])<<8 | uint32(s[3])
	}
}

// LUN is the number in the first level of a LUN field, peripheral or flat (SAM-5 section 4.7).
func LUN(field uint64) uint16 { return uint16(field>>48) & 0x3fff }

// Running describes a command that began at a time of hist.Clock and runs.
func Running(c *scsi.Command, tag uint64, began time.Duration) Command {
	return Command{At: time.Now(), Took: hist.Clock() - began, Tag: tag, LUN: LUN(c.LUN), Command: scsi.CommandName(c.CDB[0])}
}

// Trace is what recorders hold.
type Trace struct {
	Events   []Event
	Commands []Command // the last that ended, oldest first
	Inflight []Command // those that run, oldest first
}

// AddLocked adds what a recorder holds. The connection's lock is held.
func (t *Trace) AddLocked(r *Recorder) {
	r.mu.Lock()
	for i := r.n - min(r.n, Events); i != r.n; i++ {
		t.Events = append(t.Events, r.events[i%Events])
	}
	r.mu.Unlock()
	now, clock := time.Now(), hist.Clock()
	for i := r.ended - min(r.ended, Commands); i != r.ended; i++ {
		d := &r.done[i%Commands]
		c := Command{At: now.Add(d.at - clock), Took: d.took, Tag: d.tag, LUN: d.lun, Command: scsi.CommandName(d.op), Outcome: d.status.String()}
		if d.silent {
			c.Outcome = "aborted"
		}
		if d.sense != 0 {
			c.Outcome += fmt.Sprintf(", sense %x/%02x/%02x", d.sense>>16, d.sense>>8&0xff, d.sense&0xff)
		}
		t.Commands = append(t.Commands, c)
	}
}

// Add adds another trace.
func (t *Trace) Add(o Trace) {
	t.Events, t.Commands, t.Inflight = append(t.Events, o.Events...), append(t.Commands, o.Commands...), append(t.Inflight, o.Inflight...)
}

// Sort puts what came from several recorders in order.
func (t *Trace) Sort() {
	slices.SortStableFunc(t.Events, func(a, b Event) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(t.Commands, func(a, b Command) int { return a.At.Compare(b.At) })
	slices.SortFunc(t.Inflight, func(a, b Command) int { return int(b.Took - a.Took) })
}

// Keep appends the trace of a session that has ended to those that are kept, of which the oldest goes.
func Keep[T any](past []T, t T) []T {
	if len(past) >= Kept {
		past = append(past[:0], past[1:]...)
	}
	return append(past, t)
}
