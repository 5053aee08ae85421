package iscsi

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/peerlog"
)

// admit counts a connection in. The oldest login makes room when too many are unfinished, so that a flood of silent
// connections keeps no host out (RFC 7145 section 11 and RFC 7143 section 9.3 ask for such a bound). A discovery
// session makes room for any connection: it needs no secret, and its initiator asks again. A bound for each host leaves
// room for others.
func (s *Server) admit(c *conn) bool {
	var room []*conn
	var why string
	lim := &s.opt.Limits
	host := peerlog.Host(c.remote)
	s.mu.Lock()
	if s.open >= lim.Connections {
		if d := s.discoveryLocked(""); d != nil {
			room = append(room, d)
		} else {
			why = "connection refused: too many are open; raise limits.connections"
		}
	}
	if why == "" && s.hosts[host] >= lim.PerHost {
		if d := s.discoveryLocked(host); d != nil {
			room = append(room, d)
		} else {
			why = "connection refused: its host has too many open; raise limits.per_host"
		}
	}
	if s.closed || why != "" {
		closed := s.closed
		s.mu.Unlock()
		for _, d := range room {
			d.kill(errMadeRoom)
		}
		if !closed {
			c.plog.Warn(why, zap.Stringer("remote", c.remote), zap.Int("connections", lim.Connections), zap.Int("per_host", lim.PerHost))
		}
		return false
	}
	var oldest *conn
	if len(s.logins) >= lim.Logins {
		oldest = s.logins[0]
		s.logins = s.logins[1:]
	}
	s.conns[c] = struct{}{}
	c.counted = host
	s.open++
	s.hosts[host]++
	s.logins = append(s.logins, c)
	s.wg.Add(1)
	s.mu.Unlock()
	for _, d := range room {
		d.kill(errMadeRoom)
	}
	if oldest != nil {
		oldest.plog.Warn("unfinished login cut to make room", zap.Stringer("remote", oldest.remote))
		oldest.kill(errLoginFlood)
	}
	c.mu.Lock()
	c.loginTimer = time.AfterFunc(s.opt.Timeouts.Login, func() { c.kill(errLoginTimeout) })
	c.mu.Unlock()
	return true
}

// discoveryLocked takes the oldest discovery session, of a host or of any, out of the count; nil where there is none.
func (s *Server) discoveryLocked(host string) *conn {
	var oldest *session
	for _, ss := range s.sessions {
		if ss.target == nil && ss.conn.counted != "" && (host == "" || ss.conn.counted == host) && (oldest == nil || ss.since.Before(oldest.since)) {
			oldest = ss
		}
	}
	if oldest == nil {
		return nil
	}
	s.uncountLocked(oldest.conn)
	return oldest.conn
}

// roomFor ends discovery sessions over RDMA where err says that a connection has found no room for its memory. Each of
// them may hold some memory without having shown a right. An initiator that is cut asks again, as one that was refused
// does.
func (s *Server) roomFor(err error) {
	if !errors.Is(err, mem.ErrNoRoom) {
		return
	}
	var room []*conn
	s.mu.Lock()
	for _, ss := range s.sessions {
		if ss.target == nil && ss.conn.iser && ss.conn.counted != "" {
			s.uncountLocked(ss.conn)
			room = append(room, ss.conn)
		}
	}
	s.mu.Unlock()
	for _, c := range room {
		c.kill(errMadeRoom)
	}
}

func (s *Server) uncountLocked(c *conn) {
	if c.counted == "" {
		return
	}
	s.open--
	if s.hosts[c.counted]--; s.hosts[c.counted] == 0 {
		delete(s.hosts, c.counted)
	}
	c.counted = ""
}

// loggedIn takes a connection off the list of unfinished logins.
func (s *Server) loggedIn(c *conn) {
	s.mu.Lock()
	s.forgetLoginLocked(c)
	s.mu.Unlock()
}

func (s *Server) forgetLoginLocked(c *conn) {
	for i, o := range s.logins {
		if o == c {
			s.logins = append(s.logins[:i], s.logins[i+1:]...)
			return
		}
	}
}

func (s *Server) connGone(c *conn) {
	s.mu.Lock()
	s.forgetLoginLocked(c)
	s.uncountLocked(c)
	delete(s.conns, c)
	s.changed.RingLocked()
	s.mu.Unlock()
}
