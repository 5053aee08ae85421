package iscsi

import (
	"context"
	"slices"
	"sort"
)

type targetEntry struct{ Target }

// AddTarget makes a target known to discovery and logins.
func (s *Server) AddTarget(t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if s.targets[t.Name] != nil {
		return ErrTargetKnown
	}
	s.targets[t.Name] = &targetEntry{t}
	s.tellISNSLocked()
	return nil
}

// UpdateTarget replaces authentication, access list, alias and redirection of a target. Sessions of initiators that may no
// longer log in end; what others see follows their new entry.
func (s *Server) UpdateTarget(t Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	old := s.targets[t.Name]
	if old == nil {
		s.mu.Unlock()
		return ErrNoTarget
	}
	// Sessions keep the entry they logged in with; visibility asks the server.
	s.targets[t.Name] = &targetEntry{t}
	s.tellISNSLocked()
	var drop []*conn
	for _, ss := range s.sessions {
		if ss.target != nil && ss.target.Name == t.Name {
			if _, ok := t.allow(ss.initiator); !ok || t.SCSI != old.SCSI {
				drop = append(drop, ss.conn)
			}
		}
	}
	s.mu.Unlock()
	for _, c := range drop {
		c.kill(errRemoved)
	}
	if t.SCSI != nil {
		t.SCSI.RefreshVisible()
	}
	return nil
}

// RemoveTarget takes a target away and ends its sessions; it returns when their last command has ended.
func (s *Server) RemoveTarget(ctx context.Context, name string) error {
	s.mu.Lock()
	t := s.targets[name]
	if t == nil {
		s.mu.Unlock()
		return ErrNoTarget
	}
	delete(s.targets, name)
	s.tellISNSLocked()
	s.mu.Unlock()
	s.dropTarget(t, func(*session) bool { return true }, errRemoved)
	return s.changed.Wait(ctx, func() bool {
		for _, ss := range s.sessions {
			if ss.target != nil && ss.target.Name == name {
				return false
			}
		}
		return true
	})
}

// dropTarget ends the sessions of a target that which accepts.
func (s *Server) dropTarget(t *targetEntry, which func(*session) bool, why error) {
	s.mu.Lock()
	var drop []*conn
	for _, ss := range s.sessions {
		if ss.target != nil && t != nil && ss.target.Name == t.Name && which(ss) {
			drop = append(drop, ss.conn)
		}
	}
	s.mu.Unlock()
	for _, c := range drop {
		c.kill(why)
	}
}

// coldReset ends the other sessions of a target after a TARGET COLD RESET by c (RFC 7143 section 11.5.1), if they are
// shown a logical unit that c is shown. A host does nothing to units that are hidden from it.
func (s *Server) coldReset(c *conn) {
	if c.target.SCSI == nil {
		return
	}
	luns := c.target.SCSI.LUNs()
	s.dropTarget(c.target, func(ss *session) bool {
		t := s.targets[ss.target.Name]
		return ss.conn != c && t != nil && slices.ContainsFunc(luns, func(l uint16) bool { return t.shows(c.initiator, l) && t.shows(ss.initiator, l) })
	}, errReset)
}

// visible says whether an initiator sees a LUN, by the access list as it is now.
func (s *Server) visible(target, initiator string, lun uint16) bool {
	s.mu.Lock()
	t := s.targets[target]
	s.mu.Unlock()
	return t != nil && t.shows(initiator, lun)
}

func (s *Server) target(name string) *targetEntry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.targets[name]
}

// Targets lists the names of the targets, sorted.
func (s *Server) Targets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []string
	for n := range s.targets {
		l = append(l, n)
	}
	sort.Strings(l)
	return l
}
