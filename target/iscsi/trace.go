package iscsi

import "github.com/sluice-storage/sluice/target/flight"

// notePath records how an iSER connection's packets go.
func (c *conn) notePath() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x, is := c.datamover.(*iserDatamover); is && x.qp != nil {
		c.rec.NotePath(x.dev, x.qp)
	}
}

// Trace is what the flight recorder of a session holds.
type Trace struct {
	Session SessionInfo
	Ended   string // why it is over, empty while it lives
	flight.Trace
}

// traceLocked reads the recorder; conn.mu is held.
func (c *conn) traceLocked() (t Trace) {
	t.AddLocked(&c.rec)
	for _, k := range c.tasks {
		if k.state != taskFree {
			t.Inflight = append(t.Inflight, flight.Running(&k.Command, k.Tag, k.began))
		}
	}
	t.Sort()
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
	s.past = flight.Keep(s.past, t)
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
