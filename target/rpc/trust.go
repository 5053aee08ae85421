package rpc

import (
	"net/netip"
	"time"
)

// Who has shown a right (Peer.Trust) is believed to have it on its next connections too, for a while: a client that has lost its
// connection begins with the WRITEs that were not answered, and these must not wait for room behind those of strangers. It is told
// from others on its machine, and behind its address, by its address and by whether its port is one that only root may use.

// client is what a connection may be known by.
type client struct {
	addr       netip.Addr
	privileged bool
}

func (st *connState) client() client {
	return client{st.addr, st.who.Privileged()}
}

// believeLocked believes a new connection of a client that has one which is trusted, or had. s.mu is held.
func (s *Server) believeLocked(st *connState) {
	who := st.client()
	if !who.addr.IsValid() || st.who.RDMA { // there a stranger waits for no other
		return
	}
	for _, o := range st.host.conns {
		if !o.who.RDMA && o.who.trusted.Load() && o.client() == who {
			st.believed = true
			return
		}
	}
	if until, is := s.trusted[who]; is && time.Now().Before(until) {
		st.believed = true
	}
}

// rememberLocked keeps in mind that the client of a connection that ends was trusted. s.mu is held.
func (s *Server) rememberLocked(st *connState) {
	who := st.client()
	if !st.who.trusted.Load() || !who.addr.IsValid() || st.who.RDMA {
		return
	}
	now := time.Now()
	if _, is := s.trusted[who]; !is && len(s.trusted) >= maxTrusted {
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
	s.trusted[who] = now.Add(trustTime)
}
