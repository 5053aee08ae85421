package iscsi

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/scsi"
)

// recorder is the flight recorder of one connection: its last events, and apart from them its last commands, so that a
// busy session does not forget its login. An event is rare and may format text. A command costs a store into a ring.
type recorder struct {
	mu     sync.Mutex // a leaf: taken with and without conn.mu
	events [traceEvents]traceEvent
	n      uint // events so far

	// Guarded by conn.mu.
	done  [traceCommands]traceCommand
	ended uint // commands so far
}

type traceEvent struct {
	at   time.Time
	text string
}

type traceCommand struct {
	at     time.Duration // of the end, on hist.Clock
	took   time.Duration
	itt    uint32
	sense  uint32 // key, ASC and ASCQ
	lun    uint16
	op     byte
	status scsi.Status
	silent bool
}

// note records an event.
func (r *recorder) note(format string, a ...any) {
	e := traceEvent{at: time.Now(), text: fmt.Sprintf(format, a...)}
	r.mu.Lock()
	r.events[r.n%traceEvents] = e
	r.n++
	r.mu.Unlock()
}

// notePath records how an iSER connection's packets go.
func (c *conn) notePath() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x, is := c.datamover.(*iserDatamover); is && x.qp != nil {
		p := pathOf(x.dev, x.qp)
		c.rec.note("through %s %s port %d from %s; the initiator may reach: %s", p.Provider, p.Device, p.Port, p.GID, p.Exposure)
	}
}

// commandLocked records the end of a command; conn.mu is held.
func (r *recorder) commandLocked(t *task) {
	now := hist.Clock()
	c := &r.done[r.ended%traceCommands]
	r.ended++
	*c = traceCommand{at: now, took: now - t.began, itt: t.itt, status: t.Status, silent: t.Silent, lun: lunNumber(t.lun), op: t.cdb[0]}
	if s := t.Sense; len(s) >= 14 && s[0]&0x7e == 0x70 {
		c.sense = uint32(s[2]&15)<<16 | uint32(s[12])<<8 | uint32(s[13])
	} else if len(s) >= 4 {
		c.sense = uint32(s[1]&15)<<16 | uint32(s[2])<<8 | uint32(s[3])
	}
}

// lunNumber is the number in the first level of a LUN field, peripheral or flat (SAM-5 section 4.7).
func lunNumber(lun uint64) uint16 { return uint16(lun>>48) & 0x3fff }

// Trace is what the flight recorder of a session holds.
type Trace struct {
	Session  SessionInfo
	Ended    string // why it is over, empty while it lives
	Events   []TraceEvent
	Commands []TraceCommand // the last that ended, oldest first
	Inflight []TraceCommand // those that run, oldest first
}

// TraceEvent is one thing that happened to a session.
type TraceEvent struct {
	At   time.Time
	What string
}

// TraceCommand is one SCSI command.
type TraceCommand struct {
	At      time.Time // of its end, or now
	Took    time.Duration
	Tag     uint32
	LUN     uint16
	Command string
	Outcome string // a status and sense, empty while it runs
}

// traceLocked reads the recorder; conn.mu is held.
func (c *conn) traceLocked() (t Trace) {
	r := &c.rec
	r.mu.Lock()
	for i := r.n - min(r.n, traceEvents); i != r.n; i++ {
		e := &r.events[i%traceEvents]
		t.Events = append(t.Events, TraceEvent{e.at, e.text})
	}
	r.mu.Unlock()
	now, clock := time.Now(), hist.Clock()
	for i := r.ended - min(r.ended, traceCommands); i != r.ended; i++ {
		e := &r.done[i%traceCommands]
		x := TraceCommand{At: now.Add(e.at - clock), Took: e.took, Tag: e.itt, LUN: e.lun, Command: scsi.CommandName(e.op), Outcome: e.status.String()}
		if e.silent {
			x.Outcome = "aborted"
		}
		if e.sense != 0 {
			x.Outcome += fmt.Sprintf(", sense %x/%02x/%02x", e.sense>>16, e.sense>>8&0xff, e.sense&0xff)
		}
		t.Commands = append(t.Commands, x)
	}
	for _, k := range c.tasks {
		if k.state != taskFree {
			t.Inflight = append(t.Inflight, TraceCommand{At: now, Took: clock - k.began, Tag: k.itt, LUN: lunNumber(k.lun), Command: scsi.CommandName(k.cdb[0])})
		}
	}
	slices.SortFunc(t.Inflight, func(a, b TraceCommand) int { return int(b.Took - a.Took) })
	return t
}

// Trace reads the flight recorder of a session, also of one that ended not long ago.
func (s *Server) Trace(tsih uint16) (Trace, error) {
	s.mu.Lock()
	ss := s.sessions[tsih]
	var past *Trace
	for i := range s.past { // oldest first: the last of a handle that was used twice counts
		if s.past[i].Session.TSIH == tsih {
			t := s.past[i]
			past = &t
		}
	}
	s.mu.Unlock()
	if ss == nil {
		if past == nil {
			return Trace{}, ErrNoSession
		}
		return *past, nil
	}
	info, _ := ss.info()
	ss.conn.mu.Lock()
	t := ss.conn.traceLocked()
	if ss.conn.state == stateDead && ss.conn.killErr != nil {
		t.Ended = ss.conn.killErr.Error()
	}
	ss.conn.mu.Unlock()
	t.Session = info
	return t, nil
}

// PastSessions lists the sessions that ended last and whose traces are still there, oldest first.
func (s *Server) PastSessions() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []SessionInfo
	for i := range s.past {
		l = append(l, s.past[i].Session)
	}
	return l
}

// keepTrace keeps what the recorder of an ended session holds.
func (s *Server) keepTrace(ss *session, why error) {
	info, _ := ss.info()
	ss.conn.mu.Lock()
	t := ss.conn.traceLocked()
	ss.conn.mu.Unlock()
	t.Session, t.Ended = info, why.Error()
	s.mu.Lock()
	if len(s.past) >= tracesKept {
		s.past = append(s.past[:0], s.past[1:]...)
	}
	s.past = append(s.past, t)
	s.mu.Unlock()
}

// Counts are what happened at the server's door since it was made.
type Counts struct {
	Logins     uint64            // sessions that reached full-feature phase
	Redirected uint64            // logins sent elsewhere
	Refused    map[string]uint64 // logins refused, by status class and detail in hexadecimal (RFC 7143 section 11.13.5)
	Ended      map[string]uint64 // sessions ended, by reason
}

// Counts reads the counters.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := Counts{Logins: s.counts.Logins, Redirected: s.counts.Redirected, Refused: map[string]uint64{}, Ended: map[string]uint64{}}
	for k, n := range s.counts.Refused {
		out.Refused[k] = n
	}
	for k, n := range s.counts.Ended {
		out.Ended[k] = n
	}
	return out
}
