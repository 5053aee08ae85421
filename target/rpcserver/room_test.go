package rpcserver

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

const fewRequests = 8 << 20 // room for them, in these tests

func serveFew(t *testing.T) (*pipeListener, func()) {
	_, l, end := serverOfFew(t)
	return l, end
}

func serverOfFew(t *testing.T) (*Server, *pipeListener, func()) {
	s, _, l, end := servePipes(t, Options{})
	s.room.max, s.strangers.max = fewRequests, fewRequests/2
	return s, l, end
}

// A client that does not take its replies holds no memory with the calls that they answer.
func TestACallThatIsAnsweredHoldsNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end := serveFew(t)
		defer end()
		for i := range 5 {
			bad := l.dial(fmt.Sprintf("10.0.0.%d:700", 10+i))
			go func() {
				for xid := range uint32(maxInFlight) {
					if _, err := bad.Write(large(xid, procEcho, 1, 100<<10)); err != nil {
						return
					}
				}
			}()
			defer func() { _ = bad.Close() }()
		}
		synctest.Wait()
		good := l.dial("10.0.0.1:700")
		defer func() { _ = good.Close() }()
		r := readAll(good)
		go func() { _, _ = good.Write(large(1, procEcho, 1, 100<<10)) }()
		synctest.Wait()
		if r.n.Load() != 1 {
			t.Error("calls wait for clients that do not take the replies to theirs")
		}
	})
}

// begin lets a host hold all the room that it gets, with records that do not end.
func begin(t *testing.T, l *pipeListener, host string, trust bool) func() {
	var ends []func() error
	for i := range 2 * fewRequests >> 20 {
		nc := l.dial(fmt.Sprintf("%s:%d", host, 700+i))
		ends = append(ends, nc.Close)
		go func() {
			if trust {
				if _, err := nc.Write(record(1, procTrust, 1)); err != nil {
					return
				}
				if _, err := message(nc); err != nil {
					return
				}
			}
			_, _ = nc.Write(large(2, procEcho, 1, 1<<20-1<<10)[:100<<10]) // until it is closed
		}()
	}
	synctest.Wait()
	return func() {
		for _, f := range ends {
			_ = f()
		}
	}
}

// One host has half of the room, all that have shown no right have half of it, and those of one host half of the host's: others on
// that machine, or behind the same address, have a right.
func TestNeitherAHostNorStrangersHoldAllRoom(t *testing.T) {
	answered := func(t *testing.T, l *pipeListener, from string, trust bool) bool {
		nc := l.dial(from)
		defer func() { _ = nc.Close() }()
		r, n := readAll(nc), int64(1)
		if trust {
			write(t, nc, record(1, procTrust, 1))
			n++
		}
		go func() { _, _ = nc.Write(large(2, procEcho, 1, 100<<10)) }()
		synctest.Wait()
		return r.n.Load() == n
	}
	t.Run("a host", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, end := serveFew(t)
			defer end()
			defer begin(t, l, "10.0.0.9", true)()
			if answered(t, l, "10.0.0.9:999", true) {
				t.Error("one host has more than half of the room")
			}
			if !answered(t, l, "10.0.0.1:999", true) || !answered(t, l, "10.0.0.2:999", false) {
				t.Error("one host holds all room")
			}
		})
	})
	t.Run("strangers", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, end := serveFew(t)
			defer end()
			for i := range 4 {
				defer begin(t, l, fmt.Sprintf("10.0.0.%d", 6+i), false)()
			}
			if !answered(t, l, "10.0.0.1:999", true) {
				t.Error("hosts without a right hold all room")
			}
			if !answered(t, l, "10.0.0.9:999", true) {
				t.Error("those without a right that wait hold what is their host's")
			}
		})
	})
	t.Run("strangers on a host", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			l, end := serveFew(t)
			defer end()
			defer begin(t, l, "10.0.0.9", false)()
			if !answered(t, l, "10.0.0.9:999", true) {
				t.Error("those without a right hold all of their host's room")
			}
			if !answered(t, l, "10.0.0.1:999", false) {
				t.Error("those of one host hold all room of those without a right")
			}
		})
	})
}

// A client that has lost its connection repeats its WRITEs first: it does not wait behind strangers until it has shown its right again.
// Others at its address are not taken for it, and it is forgotten after a while.
func TestAClientThatComesBackIsNoStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, end := serveFew(t)
		defer end()
		trust := func(from string) net.Conn {
			nc := l.dial(from)
			write(t, nc, record(1, procTrust, 1))
			if _, err := message(nc); err != nil {
				t.Fatal(err)
			}
			return nc
		}
		comesBack := func(from string) bool {
			nc := l.dial(from)
			defer func() { _ = nc.Close() }()
			r := readAll(nc)
			go func() { _, _ = nc.Write(large(2, procEcho, 1, 100<<10)) }()
			synctest.Wait()
			return r.n.Load() == 1
		}
		strangers := func() (end func()) {
			var ends []func()
			for i := range 4 {
				ends = append(ends, begin(t, l, fmt.Sprintf("10.0.0.%d", 6+i), false))
			}
			return func() {
				for _, f := range ends {
					f()
				}
				synctest.Wait()
			}
		}
		old := trust("10.0.0.1:700")
		leave := strangers()
		if !comesBack("10.0.0.1:701") {
			t.Error("a client whose old connection is still there is a stranger")
		}
		_ = old.Close()
		synctest.Wait()
		for what, from := range map[string]string{"another user at its address": "10.0.0.1:2000", "another host": "10.0.0.2:700"} {
			if comesBack(from) {
				t.Error(what + " is trusted")
			}
		}
		if !comesBack("10.0.0.1:702") {
			t.Error("a client that has come back is a stranger")
		}
		leave()
		time.Sleep(trustTime + time.Second)
		defer strangers()()
		if comesBack("10.0.0.1:703") {
			t.Error("a client is trusted for ever")
		}
	})
}
