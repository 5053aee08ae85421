package iscsi

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/transport"
)

// session is what a login leaves in the server's lists. It is gone when its connection is dead, its nexus closed and
// its last command over. Only then may a session that replaces it answer its login (RFC 7143 section 6.3.5).
type session struct {
	key       sessionKey
	tsih      uint16
	cid       uint16
	conn      *conn
	target    *targetEntry // nil for discovery
	initiator string
	user      string // that CHAP proved, empty without
	bound     bool   // user is configured for this initiator's name
	since     time.Time

	// Guarded by Server.mu.
	prev   *session // being replaced by this one
	holds  int      // reasons to exist beside the connection
	ended  bool     // the connection is finished
	gone   bool
	onGone []func()
}

func (ss *session) hold() {
	s := ss.conn.srv
	s.mu.Lock()
	ss.holds++
	s.mu.Unlock()
}

func (ss *session) release() {
	s := ss.conn.srv
	s.mu.Lock()
	ss.holds--
	calls := s.reapLocked(ss)
	s.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// errStale says that a target has changed since a login was judged by it.
var errStale = errors.New("iscsi: the target has changed")

// install enters a session. It calls ready once nothing of the session that it replaces is left, maybe later and on
// another goroutine.
func (s *Server) install(ss *session, ready func()) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	if ss.target != nil && s.targets[ss.key.target] != ss.target {
		s.mu.Unlock()
		return errStale
	}
	var old *session
	if ss.target != nil {
		old = s.byName[ss.key]
	}
	// Section 9.2: another user is not the host whose session this would end.
	if old != nil && !old.ended && !ss.bound && old.user != "" && ss.user != "" && old.user != ss.user {
		s.mu.Unlock()
		return refuse(iscsi.LoginAuthFailed, fmt.Sprintf("write %s behind the secret of its user in the secrets file", ss.initiator),
			"initiator %q has a session of another user", clip(ss.initiator))
	}
	for {
		if s.lastTSIH++; s.lastTSIH != 0 && s.sessions[s.lastTSIH] == nil {
			break
		}
	}
	ss.tsih = s.lastTSIH
	s.sessions[ss.tsih] = ss
	if ss.target != nil {
		ss.prev = old
		s.byName[ss.key] = ss
	}
	if old != nil {
		old.onGone = append(old.onGone, ready)
	}
	s.mu.Unlock()
	if old == nil {
		ready()
		return nil
	}
	old.conn.kill(errReinstated)
	return nil
}

// sessionGone notes that a session's connection and nexus are over.
func (s *Server) sessionGone(ss *session) {
	s.mu.Lock()
	ss.ended = true
	calls := s.reapLocked(ss)
	s.mu.Unlock()
	for _, f := range calls {
		f()
	}
}

// reapLocked removes a session that nothing holds any more, and those that waited only for it.
func (s *Server) reapLocked(ss *session) []func() {
	// One that was cut while it waited for its predecessor is gone after that: the order of the medium is theirs.
	if ss.gone || !ss.ended || ss.holds > 0 || ss.prev != nil && !ss.prev.gone {
		return nil
	}
	ss.gone = true
	ss.prev = nil
	delete(s.sessions, ss.tsih)
	if s.byName[ss.key] == ss {
		delete(s.byName, ss.key)
	}
	calls := ss.onGone
	ss.onGone = nil
	for _, next := range s.sessions {
		if next.prev == ss && next.ended {
			calls = append(calls, s.reapLocked(next)...)
		}
	}
	s.changed.RingLocked()
	return calls
}

// SessionInfo describes one session.
type SessionInfo struct {
	TSIH      uint16    `json:"tsih"`
	Initiator string    `json:"initiator"`
	ISID      [6]byte   `json:"isid"`
	Target    string    `json:"target"`    // empty for discovery
	Transport string    `json:"transport"` // "iSER" or "iSCSI"
	Local     string    `json:"local"`
	Remote    string    `json:"remote"`
	Group     uint16    `json:"group"`
	Since     time.Time `json:"since"`
	Active    int       `json:"active"` // commands in progress
	Window    int       `json:"window"` // commands that may be
	Commands  uint64    `json:"commands"`
	BytesIn   uint64    `json:"bytes_in"`  // from the initiator
	BytesOut  uint64    `json:"bytes_out"` // to the initiator
	Copied    uint64    `json:"bytes_copied"`
	Rejects   uint64    `json:"rejects"`
	Memory    int64     `json:"memory"` // registered bytes held
	// Path is how an iSER session's packets go; nil for TCP.
	Path *transport.Path `json:"path,omitempty"`
}

// Sessions lists the sessions in full-feature phase, by handle.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	all := make([]*session, 0, len(s.sessions))
	for _, ss := range s.sessions {
		all = append(all, ss)
	}
	s.mu.Unlock()
	sort.Slice(all, func(i, j int) bool { return all[i].tsih < all[j].tsih })
	var l []SessionInfo
	for _, ss := range all {
		if i, ok := ss.info(); ok {
			l = append(l, i)
		}
	}
	return l
}

// info describes a session and reports whether it is in full-feature phase.
func (ss *session) info() (SessionInfo, bool) {
	c := ss.conn
	i := SessionInfo{TSIH: ss.tsih, Initiator: ss.initiator, ISID: ss.key.isid, Transport: "iSCSI", Local: c.local.String(), Remote: c.remote.String(),
		Group: c.portal.Group, Since: ss.since}
	if c.iser {
		i.Transport = "iSER"
	}
	if ss.target != nil {
		i.Target = ss.target.Name
	}
	c.mu.Lock()
	state := c.state
	i.Active, i.Window = c.active, c.window
	i.Commands, i.BytesIn, i.BytesOut, i.Copied, i.Rejects = c.stats.commands, c.stats.bytesIn, c.stats.bytesOut, c.stats.copied, c.stats.rejects
	quota := c.quota
	if x, is := c.datamover.(*iserDatamover); is && x.qp != nil {
		i.Path = transport.PathOf(x.dev, x.qp)
	}
	c.mu.Unlock()
	if quota != nil {
		i.Memory = quota.Held()
	}
	return i, state == stateFull || state == stateEnding
}

// CloseSession drops one session by its handle.
func (s *Server) CloseSession(tsih uint16) error {
	s.mu.Lock()
	ss := s.sessions[tsih]
	s.mu.Unlock()
	if ss == nil {
		return ErrNoSession
	}
	ss.conn.kill(errDropped)
	return nil
}
