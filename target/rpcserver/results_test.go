package rpcserver

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

const fewResults = 8 << 20 // room for them, in these tests, of which a host has half

func resultsOfFew(t *testing.T, o Options) (*Server, *program, *pipeListener, func()) {
	s, p, l, end := servePipes(t, o)
	s.results.max = fewResults
	return s, p, l, end
}

// greedy asks for much and takes nothing.
func greedy(l *pipeListener, from string, proc, n uint32) net.Conn {
	nc := l.dial(from)
	go func() {
		for i := range uint32(maxInFlight) {
			if _, err := nc.Write(record(i, proc, n)); err != nil {
				return
			}
		}
	}()
	return nc
}

// Clients that take no replies hold no more results than there is room for, and a host half of that: whoever executes the calls, over however many
// connections, and whether the result is bulk data or not.
func TestResultsHaveABoundInAll(t *testing.T) {
	for what, x := range map[string]struct {
		proc, n uint32
		o       Options
	}{
		"bulk by the reader":  {procBulk, 1 << 20, Options{}},
		"bulk by workers":     {procBulk, 1 << 20, Options{NoInline: true}},
		"short by workers":    {procBulk, 60 << 10, Options{NoInline: true}},
		"lists, by workers":   {procList, 60 << 10, Options{}},
		"lists without a say": {procLong, 60 << 10, Options{}},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _, l, end := resultsOfFew(t, x.o)
				var all []net.Conn
				for i := range 4 {
					all = append(all, greedy(l, fmt.Sprintf("10.0.0.9:%d", 700+i), x.proc, x.n))
				}
				synctest.Wait()
				slack := int64(0)
				if x.proc == procLong { // it is there before it is counted
					slack = 4 * maxHeld
				}
				if n := s.results.used.Load(); n < fewResults/4 || n > fewResults/2+slack {
					t.Errorf("%d bytes of results are held for one host; there is room for %d", n, fewResults/2)
				}
				good := l.dial("10.0.0.1:700")
				r := readAll(good)
				write(t, good, record(1, procBulk, 1<<20))
				write(t, good, record(2, procList, 60<<10))
				synctest.Wait()
				if r.n.Load() != 2 && slack == 0 {
					t.Errorf("another host has %d replies of 2", r.n.Load())
				}
				// What needs no room is answered on the connection of a host that has none.
				other := l.dial("10.0.0.9:999")
				ro := readAll(other)
				write(t, other, record(1, procBulk, 1<<20))
				write(t, other, record(2, procEcho, 1))
				write(t, other, record(3, procBulk, 4<<10))
				synctest.Wait()
				if ro.n.Load() != 2 && slack == 0 {
					t.Errorf("the host that has no room for results has %d replies, not the 2 that need none", ro.n.Load())
				}
				for _, nc := range all {
					_ = nc.Close()
				}
				synctest.Wait()
				if r.n.Load() != 2 || ro.n.Load() != 3 {
					t.Errorf("%d and %d replies when the greedy are gone", r.n.Load(), ro.n.Load())
				}
				_, _ = good.Close(), other.Close()
				end()
			})
		})
	}
}

// A stream that does not take replies has no more of them made than it may hold, however many of its calls workers have.
func TestAStreamThatHoldsMuchHasNoMoreResultsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l, end := servePipes(t, Options{NoInline: true, Workers: 1})
		s.pool.most = 1 // one after another: what several make at one time they have all asked for before
		nc := greedy(l, "10.0.0.9:700", procBulk, 1<<20)
		synctest.Wait()
		if n := s.results.used.Load(); n > maxHeld+2*MaxRecord {
			t.Errorf("%d bytes of results are held for one stream", n)
		}
		r := readAll(nc)
		synctest.Wait()
		if r.n.Load() != maxInFlight {
			t.Errorf("%d replies of %d when it takes them", r.n.Load(), maxInFlight)
		}
		_ = nc.Close()
		end()
	})
}

// Clients that take their replies have all of them, however little room there is: what holds room waits for no other room.
func TestLittleRoomForResultsIsNoDeadlock(t *testing.T) {
	for _, o := range []Options{{}, {NoInline: true}, {NoLoan: true, Workers: 2}} {
		t.Run(fmt.Sprintf("%+v", o), func(t *testing.T) {
			s, _, addr := serve(t, o)
			s.mu.Lock()
			s.results.max = 2*MaxRecord + 1000 // one call's for a host
			s.mu.Unlock()
			const clients, calls = 3, 60
			var all sync.WaitGroup
			for g := range clients {
				nc := dial(t, addr)
				all.Go(func() {
					for i := range uint32(calls) {
						proc := []uint32{procBulk, procList, procMiddle, procEcho}[(int(i)+g)%4]
						if _, err := nc.Write(record(i, proc, 1+i*17000%(MaxPayload))); err != nil {
							t.Error(err)
						}
					}
				})
				all.Go(func() {
					got := make(map[uint32]bool)
					for len(got) < calls {
						m, err := message(nc)
						if err != nil {
							t.Errorf("%d replies: %v", len(got), err)
							return
						}
						r := xdr.NewReader(m)
						xid, err := oncrpc.ParseReply(&r)
						if want := 1 + xid*17000%(MaxPayload); err != nil || got[xid] || r.Uint32() != want {
							t.Errorf("call %d: %v, again %v", xid, err, got[xid])
						}
						got[xid] = true
					}
				})
			}
			all.Wait()
			eventually(t, "room is held when all is answered", func() bool { return s.results.used.Load() == 0 })
		})
	}
}

// Connections, and the server, end while calls wait for room for their results.
func TestConnectionsEndWhileCallsWaitForRoomForResults(t *testing.T) {
	for _, half := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, _, l, end := resultsOfFew(t, Options{NoInline: true})
			a, b := greedy(l, "10.0.0.9:700", procBulk, 1<<20), greedy(l, "10.0.0.9:701", procBulk, 1<<20)
			synctest.Wait()
			if half {
				_ = b.Close()
				time.Sleep(lingerTime) // it could be half closed
				synctest.Wait()
				if n := s.Stats().Connections; n != 1 {
					t.Errorf("%d connections; the one that was closed waits for room", n)
				}
			}
			if err := s.Close(context.Background()); err != nil {
				t.Error(err)
			}
			_, _ = a.Close(), b.Close()
			end()
		})
	}
}

// A client that takes replies late is answered in the end, and one that takes none is closed, with what it holds.
func TestRoomComesBackFromAClientThatTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l, end := resultsOfFew(t, Options{})
		bad := greedy(l, "10.0.0.9:700", procBulk, 1<<20)
		synctest.Wait()
		other := l.dial("10.0.0.9:701")
		r := readAll(other)
		write(t, other, record(1, procBulk, 1<<20))
		time.Sleep(unreadTime + 3*watchTick)
		if r.n.Load() != 1 || s.Stats().Refused["overdue"] != 1 {
			t.Errorf("%d replies, %v", r.n.Load(), s.Stats().Refused)
		}
		_, _ = bad.Close(), other.Close()
		end()
	})
}
