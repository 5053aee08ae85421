package rpcserver

import (
	"net/netip"
	"time"
)

// Who has shown a right (Peer.Trust) is believed to have it on its next connections too, for a while: a client that has lost its
// connection begins with the WRITEs that were not answered, and these must not wait for room behind those of strangers. It is told
// from others on its machine, and behind its address, by its address and by whether its port is one that only root may use. What it
// has shown counts for trustTime from when a program saw it last, and new connections carry that no further.

// client is what a connection may be known by.
type client struct {
	addr       netip.Addr
	privileged bool
}

func (st *connState) client() client {
	return client{st.addr, st.who.Privileged()}
}

// believeLocked believes a new connection of a client that has one which is trusted, or had, until it has had time to show the right
// itself. s.mu is held.
func (s *Server) believeLocked(st *connState) {
	who := st.client()
	if !who.addr.IsValid() || st.who.RDMA { // there a stranger waits for no other
		return
	}
	now := time.Now()
	shown := s.trusted[who]
	for _, o := range st.host.conns {
		if until := o.who.shown.Load(); until != nil && !o.who.RDMA && o.client() == who && shown.Before(*until) {
			shown = *until
		}
	}
	if until := now.Add(beliefTime); until.Before(shown) {
		shown = until
	}
	if now.Before(shown) {
		st.believed.Store(&shown)
	}
}

// rememberLocked keeps in mind that the client of a connection that ends was trusted. s.mu is held.
func (s *Server) rememberLocked(st *connState) {
	who, shown := st.client(), st.who.shown.Load()
	if !lasts(shown) || !who.addr.IsValid() || st.who.RDMA {
		return
	}
	now := time.Now()
	was, is := s.trusted[who]
	if !is && len(s.trusted) >= maxTrusted {
		oldest, first := client{}, time.Time{}
		for o, until := range s.trusted {
			if !now.Before(until) {
				delete(s.trusted, o)
			} else if first.IsZero() || until.Before(first) {
				oldest, first = o, until
			}
		}
		if len(s.trusted) >= maxTrusted {
			delete(s.trusted, oldest)
		}
	}
	if was.Before(*shown) {
		s.trusted[who] = *shown
	}
}

// Reconsider is for a program whose rights have changed: a client of which has finds no right any more is a stranger at once, and not
// only when trustTime has passed.
func (s *Server) Reconsider(has func(addr netip.Addr, privileged bool) bool) {
	rights := make(map[client]bool)
	s.mu.Lock()
	for who := range s.trusted {
		rights[who] = false
	}
	for _, h := range s.hosts {
		for _, st := range h.conns {
			rights[st.client()] = false
		}
	}
	s.mu.Unlock()
	for who := range rights { // the program may have many rules
		rights[who] = has(who.addr, who.privileged)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for who, has := range rights {
		if !has {
			delete(s.trusted, who)
		}
	}
	for _, h := range s.hosts {
		for _, st := range h.conns {
			if has, was := rights[st.client()]; was && !has {
				st.who.shown.Store(nil)
				st.believed.Store(nil)
			}
		}
	}
}
