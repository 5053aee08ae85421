package rpcserver

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// trustRig is a server, strangers on which can hold all the room that strangers have.
type trustRig struct {
	t *testing.T
	s *Server
	l *pipeListener
}

func trustTest(t *testing.T, f func(r *trustRig)) {
	synctest.Test(t, func(t *testing.T) {
		s, l, end := serverOfFew(t)
		defer end()
		f(&trustRig{t, s, l})
	})
}

// call has one call answered.
func (r *trustRig) call(nc net.Conn, proc uint32) {
	r.t.Helper()
	write(r.t, nc, record(1, proc, 1))
	if _, err := message(nc); err != nil {
		r.t.Fatal(err)
	}
}

// right is a connection that shows a right.
func (r *trustRig) right(from string) net.Conn {
	nc := r.l.dial(from)
	r.call(nc, procTrust)
	return nc
}

// trusted reports whether a WRITE on a connection is read while strangers hold all room that strangers have.
func (r *trustRig) trusted(nc net.Conn) bool {
	var ends []func()
	for i := range 4 {
		ends = append(ends, begin(r.t, r.l, fmt.Sprintf("10.0.0.%d", 6+i), false))
	}
	n := readAll(nc)
	go func() { _, _ = nc.Write(large(2, procEcho, 1, 100<<10)) }()
	synctest.Wait()
	is := n.n.Load() == 1
	_ = nc.Close()
	for _, f := range ends {
		f()
	}
	synctest.Wait()
	return is
}

// alive keeps a connection by calls that need no right.
func (r *trustRig) alive(nc net.Conn, d time.Duration) {
	for ; d > 0; d -= time.Minute {
		time.Sleep(time.Minute)
		r.call(nc, procEcho)
	}
}

func TestTrustLastsNoLongerThanTheRightIsMadeUseOf(t *testing.T) {
	t.Run("a connection that is kept alive", func(t *testing.T) {
		trustTest(t, func(r *trustRig) {
			old := r.right("10.0.0.1:700")
			r.alive(old, trustTime)
			if r.trusted(r.l.dial("10.0.0.1:701")) {
				t.Error("the client is believed for as long as it keeps a connection")
			}
			if r.trusted(old) {
				t.Error("a connection is trusted for as long as it is kept alive")
			}
		})
	})
	t.Run("one that shows it again", func(t *testing.T) {
		trustTest(t, func(r *trustRig) {
			old := r.right("10.0.0.1:700")
			r.alive(old, trustTime-time.Minute)
			r.call(old, procTrust)
			r.alive(old, 2*time.Minute)
			if !r.trusted(old) {
				t.Error("a client that makes use of its right is a stranger")
			}
		})
	})
	t.Run("one that was only believed", func(t *testing.T) {
		trustTest(t, func(r *trustRig) {
			_ = r.right("10.0.0.1:700").Close()
			synctest.Wait()
			next := r.l.dial("10.0.0.1:701")
			r.alive(next, beliefTime)
			if r.trusted(next) {
				t.Error("a connection that has shown no right is believed for as long as it is kept alive")
			}
		})
	})
	t.Run("ends do not renew it", func(t *testing.T) {
		trustTest(t, func(r *trustRig) {
			old := r.right("10.0.0.1:700")
			r.alive(old, trustTime-time.Minute)
			_ = old.Close()
			synctest.Wait()
			time.Sleep(2 * time.Minute)
			if r.trusted(r.l.dial("10.0.0.1:701")) {
				t.Error("the end of a connection has renewed its client's trust")
			}
		})
	})
}

func TestTrustEndsWhenTheRightIsRevoked(t *testing.T) {
	revoke := func(r *trustRig) {
		r.s.Reconsider(func(addr netip.Addr, privileged bool) bool {
			return !privileged || addr != netip.MustParseAddr("10.0.0.1")
		})
	}
	for what, of := range map[string]func(r *trustRig) net.Conn{
		"its connection": func(r *trustRig) net.Conn { c := r.right("10.0.0.1:700"); revoke(r); return c },
		"a connection on its word": func(r *trustRig) net.Conn {
			r.right("10.0.0.1:700")
			c := r.l.dial("10.0.0.1:701")
			synctest.Wait()
			revoke(r)
			return c
		},
		"its next connection": func(r *trustRig) net.Conn { r.right("10.0.0.1:700"); revoke(r); return r.l.dial("10.0.0.1:701") },
		"one that comes back": func(r *trustRig) net.Conn {
			_ = r.right("10.0.0.1:700").Close()
			synctest.Wait()
			revoke(r)
			return r.l.dial("10.0.0.1:701")
		},
	} {
		t.Run(what, func(t *testing.T) {
			trustTest(t, func(r *trustRig) {
				if r.trusted(of(r)) {
					t.Error("a client whose right was revoked is trusted")
				}
			})
		})
	}
	for what, from := range map[string]string{"another host": "10.0.0.2:700", "another user at its address": "10.0.0.1:2000"} {
		t.Run(what, func(t *testing.T) {
			trustTest(t, func(r *trustRig) {
				c := r.right(from)
				revoke(r)
				if !r.trusted(c) {
					t.Error("a client whose right stays is a stranger")
				}
			})
		})
	}
}
