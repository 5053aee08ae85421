package rpcserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// pipes is a listener of connections in memory, whose peers have the addresses that the test gives them.
type pipeListener struct {
	c    chan net.Conn
	once sync.Once
	done chan struct{}
}

type pipeConn struct {
	net.Conn
	from net.Addr
}

func (c pipeConn) RemoteAddr() net.Addr { return c.from }

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.c:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func (l *pipeListener) dial(from string) net.Conn {
	here, there := net.Pipe()
	l.c <- pipeConn{there, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(from))}
	return here
}

// servePipes serves the program in a bubble until end is called.
func servePipes(t *testing.T, o Options) (*Server, *program, *pipeListener, func()) {
	t.Helper()
	p := &program{gate: make(chan struct{}), entered: make(chan struct{}, 1000)}
	s := NewServer(o, p)
	l := &pipeListener{c: make(chan net.Conn), done: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- s.ServeTCP(l) }()
	return s, p, l, func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, ErrServerClosed) {
			t.Error(err)
		}
		if n := s.room.used.Load() + s.strangers.used.Load(); n != 0 {
			t.Errorf("%d bytes of requests were never given back", n)
		}
		if n := s.results.used.Load(); n != 0 {
			t.Errorf("%d bytes of results were never given back", n)
		}
	}
}

// large is a call with n bytes behind its word.
func large(xid, proc, arg uint32, n int) []byte {
	c := oncrpc.Call{XID: xid, Prog: 400000, Vers: 1, Proc: proc}
	b := append(xdr.AppendUint32(c.Append(make([]byte, 4)), arg), make([]byte, n)...)
	oncrpc.PutMark(b, len(b)-4, true)
	return b
}

// replies counts the replies that come until the connection ends.
type replies struct {
	n   atomic.Int64
	end atomic.Bool
}

func readAll(nc net.Conn) *replies {
	r := &replies{}
	go func() {
		for {
			if _, err := message(nc); err != nil {
				r.end.Store(true)
				return
			}
			r.n.Add(1)
		}
	}()
	return r
}

func TestAnIdleConnectionIsClosedAndOneInUseIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, l, end := servePipes(t, Options{})
		idle, used, busy := l.dial("10.0.0.1:700"), l.dial("10.0.0.1:701"), l.dial("10.0.0.1:702")
		ri, ru, rb := readAll(idle), readAll(used), readAll(busy)
		write(t, idle, record(1, procEcho, 1))
		write(t, busy, record(1, procWait, 1)) // executed for as long as the test takes
		for i := range uint32(30) {
			write(t, used, record(i, procEcho, i))
			time.Sleep(idleTime / 6)
			if gone := ri.end.Load(); gone != (i >= 6) && i != 6 {
				t.Errorf("after %v: the idle connection has ended: %v", time.Duration(i+1)*idleTime/6, gone)
			}
		}
		if ru.n.Load() != 30 || ru.end.Load() || rb.end.Load() {
			t.Errorf("%d of 30 replies; ended: in use %v, with a call under way %v", ru.n.Load(), ru.end.Load(), rb.end.Load())
		}
		close(p.gate)
		synctest.Wait()
		if rb.n.Load() != 1 {
			t.Error("the call that took long was not answered")
		}
		_, _ = used.Close(), busy.Close()
		end()
	})
}

func TestARecordThatIsBegunHasToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l, end := servePipes(t, Options{})
		nc := l.dial("10.0.0.1:700")
		r := readAll(nc)
		write(t, nc, large(1, procEcho, 1, 1<<20)[:100<<10])
		synctest.Wait()
		if s.room.used.Load() < 1<<20 {
			t.Error("the record has no room")
		}
		time.Sleep(recordTime - watchTick)
		if r.end.Load() {
			t.Error("ended too soon")
		}
		time.Sleep(3 * watchTick)
		if !r.end.Load() || s.room.used.Load() != 0 {
			t.Errorf("ended: %v; %d bytes held", r.end.Load(), s.room.used.Load())
		}
		end()
	})
}

func TestRepliesHaveToBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l, end := servePipes(t, Options{})
		nc := l.dial("10.0.0.1:700")
		for i := range uint32(4) {
			write(t, nc, record(i, procBulk, 1<<20))
		}
		time.Sleep(unreadTime - watchTick)
		if s.Stats().Connections != 1 {
			t.Error("ended too soon")
		}
		time.Sleep(4 * watchTick)
		if st := s.Stats(); st.Connections != 0 || st.Refused["overdue"] != 1 {
			t.Errorf("%d connections, %v", st.Connections, st.Refused)
		}
		_ = nc.Close()
		end()
	})
}

func TestConnectionsOfAHostAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, l, end := servePipes(t, Options{})
		var all []net.Conn
		defer func() {
			for _, c := range all {
				_ = c.Close()
			}
			end()
		}()
		works := func(from string) bool {
			nc := l.dial(from)
			all = append(all, nc)
			if _, err := nc.Write(record(1, procEcho, 1)); err != nil {
				return false
			}
			_, err := message(nc)
			return err == nil
		}
		for i := range maxHostConns {
			if !works(fmt.Sprintf("[2001:db8:1:1::1]:%d", i+1)) {
				t.Fatalf("connection %d is refused", i)
			}
		}
		if works("[2001:db8:1:1::1]:700") {
			t.Error("a host has more connections than its limit")
		}
		for i := range maxNetConns - maxHostConns { // all machines of a LAN are in one network of 64 bits
			if !works(fmt.Sprintf("[2001:db8:1:1::%x]:700", i+2)) {
				t.Fatalf("connection %d of another machine is refused", i)
			}
		}
		if works("[2001:db8:1:1::ffff]:700") {
			t.Error("a network that may be one host's has more connections than its limit")
		}
		if !works("[2001:db8:1:2::1]:700") || !works("10.0.0.1:700") {
			t.Error("one host's connections keep others out")
		}
		if n := s.Stats().Refused["too_many_connections"]; n != 2 {
			t.Errorf("%d refusals counted", n)
		}
		_ = all[0].Close()
		synctest.Wait()
		if !works("[2001:db8:1:1::ffff]:700") {
			t.Error("the room of a connection that has ended is not given again")
		}
	})
}

func TestRequestsHaveABoundInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, l, end := servePipes(t, Options{})
		s.room.max = 6 << 20 // and half of it for each host
		a, b := l.dial("10.0.0.1:700"), l.dial("10.0.0.2:700")
		ra, rb := readAll(a), readAll(b)
		write(t, a, record(100, procTrust, 1))
		synctest.Wait()
		var sent atomic.Int64
		go func() {
			for i := range uint32(8) {
				if _, err := a.Write(large(i, procWait, i, 1<<20)); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			}
		}()
		synctest.Wait()
		if n := sent.Load(); n > 3 || s.room.used.Load() > s.room.max/2 {
			t.Errorf("%d records of a MiB were read into 3 MiB; %d bytes in use", n, s.room.used.Load())
		}
		write(t, b, record(1, procEcho, 1)) // what fits the call itself needs no room
		synctest.Wait()
		if rb.n.Load() != 1 {
			t.Error("a small call of another client waits for room")
		}
		close(p.gate)
		synctest.Wait()
		if ra.n.Load() != 1+8 {
			t.Errorf("%d replies of 9", ra.n.Load())
		}
		_, _ = a.Close(), b.Close()
		end()
	})
}

// Whoever waits for room gets it, in any order of takers that come, leave and give up.
func TestRoomIsFirstComeFirstServedAndNeverLost(t *testing.T) {
	r := room{max: 100}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 8 {
		rnd := rand.New(rand.NewPCG(1, uint64(g)))
		wg.Go(func() {
			for range 2000 {
				n := rnd.Int64N(100) + 1
				quit := stop
				if rnd.IntN(4) == 0 {
					quit = make(chan struct{})
					close(quit)
				}
				if r.take(n, quit, nil) {
					if u := r.used.Load(); u > 2*r.max { // a try that is taken back counts for a moment
						t.Errorf("%d of %d in use", u, r.max)
					}
					r.give(n)
				}
			}
		})
	}
	wg.Wait()
	if r.used.Load() != 0 || r.waiting.Load() != 0 || len(r.queue) != 0 {
		t.Errorf("%d in use, %d waiting", r.used.Load(), r.waiting.Load())
	}
}

// A client repeats on a new connection what the old one has not answered, and goes on from there. What the old connection
// still executes must not come after that.
func TestCallsOfALostConnectionComeBeforeThoseOfTheNext(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, p, l, end := servePipes(t, Options{Workers: 1})
			s.pool.most = 1 // more for those that are stuck would take the place of the test's hang
			old := l.dial("10.0.0.1:700")
			write(t, old, record(1, procWait, 1))
			<-p.entered
			write(t, old, record(2, procCount, 1)) // queued: there is one worker
			synctest.Wait()
			_ = old.Close()
			next, other := l.dial("10.0.0.1:701"), l.dial("10.0.0.2:701")
			rn, ro := readAll(next), readAll(other)
			write(t, next, record(3, procEcho, 1))
			write(t, other, record(3, procEcho, 1))
			synctest.Wait()
			if rn.n.Load() != 0 || ro.n.Load() != 1 {
				t.Errorf("the next connection has %d replies while a call of the lost one is executed; another host has %d", rn.n.Load(), ro.n.Load())
			}
			want := uint32(1)
			if hangs {
				time.Sleep(settleTime)
				synctest.Wait()
				if rn.n.Load() != 1 {
					t.Error("a call that hangs keeps the client out")
				}
				want = 0 // and what was behind it is not executed any more
			}
			close(p.gate)
			synctest.Wait()
			if rn.n.Load() != 1 || p.count.Load() != want {
				t.Errorf("%d replies; the queued call was executed %d times", rn.n.Load(), p.count.Load())
			}
			_, _ = next.Close(), other.Close()
			end()
		})
	}
}

// A client may leave a connection whose path is cut without this end's knowing, and repeat its calls on another. What then
// comes by the first is not executed: it would undo what came after the repetition. Its other calls are.
func TestACallThatWasRepeatedOnANewerConnectionIsNotExecutedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, l, end := servePipes(t, Options{})
		old, used := l.dial("10.0.0.1:700"), l.dial("10.0.0.1:702")
		ro, ru := readAll(old), readAll(used)
		write(t, old, record(1, procEcho, 1))
		write(t, used, record(1, procEcho, 1))
		synctest.Wait()
		next, other := l.dial("10.0.0.1:701"), l.dial("10.0.0.2:700")
		rn, rx := readAll(next), readAll(other)
		write(t, next, record(2, procWrite, 1))
		synctest.Wait()
		if rn.n.Load() != 1 || p.count.Load() != 1 {
			t.Fatalf("%d replies, executed %d times", rn.n.Load(), p.count.Load())
		}
		write(t, used, record(3, procWrite, 1)) // no repetition: both connections are in use
		write(t, used, record(2, procWrite, 2)) // another call with that number
		write(t, other, record(2, procWrite, 1))
		write(t, next, record(4, procWrite, 1))
		synctest.Wait()
		if ru.n.Load() != 3 || rx.n.Load() != 1 || rn.n.Load() != 2 || p.count.Load() != 5 {
			t.Errorf("%d, %d and %d replies, executed %d times", ru.n.Load(), rx.n.Load(), rn.n.Load(), p.count.Load())
		}
		write(t, old, record(2, procWrite, 1))
		synctest.Wait()
		if n := p.count.Load(); n != 5 || ro.n.Load() != 1 || !ro.end.Load() {
			t.Errorf("a call is executed after its repetition (%d), or its connection stays", n)
		}
		_, _, _, _ = old.Close(), used.Close(), next.Close(), other.Close()
		end()
	})
}

// A worker that is stuck in a call does not count: calls that wait get another, and there are no more than before when it
// has come back.
func TestWorkersThatAreStuckDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const workers = 2
		s, p, l, end := servePipes(t, Options{Workers: workers})
		a, b := l.dial("10.0.0.1:700"), l.dial("10.0.0.2:700")
		ra, rb := readAll(a), readAll(b)
		for i := range uint32(workers) {
			write(t, a, record(i+1, procWait, 1))
			<-p.entered
		}
		write(t, b, record(9, procCount, 1))
		synctest.Wait()
		if rb.n.Load() != 0 {
			t.Fatal("there are more workers than were asked for")
		}
		time.Sleep(stuckTime)
		synctest.Wait()
		if rb.n.Load() != 1 {
			t.Error("calls that hang hold up those of another client")
		}
		close(p.gate)
		synctest.Wait()
		if ra.n.Load() != workers {
			t.Errorf("%d replies of %d", ra.n.Load(), workers)
		}
		s.pool.mu.Lock()
		if s.pool.n > workers || s.pool.stuck != 0 || len(s.pool.busy) != s.pool.n {
			t.Errorf("%d workers, %d of them stuck, %d listed", s.pool.n, s.pool.stuck, len(s.pool.busy))
		}
		s.pool.mu.Unlock()
		_, _ = a.Close(), b.Close()
		end()
	})
}

// eventually waits for what becomes true by itself.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func TestWhatIsQueuedOfABrokenConnectionIsNotExecuted(t *testing.T) {
	s, p, addr := serve(t, Options{Workers: 1})
	nc, ok := dial(t, addr).(*net.TCPConn)
	if !ok {
		t.Fatal("no TCP")
	}
	write(t, nc, record(1, procWait, 1))
	<-p.entered
	write(t, nc, record(2, procCount, 1))
	eventually(t, "the second call is not queued", func() bool { return s.Stats().Waiting == 1 })
	if err := nc.SetLinger(0); err != nil { // a reset
		t.Fatal(err)
	}
	_ = nc.Close()
	eventually(t, "the end of the connection was not noticed", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range s.hosts {
			for _, st := range h.conns {
				return st.lost.Load()
			}
		}
		return false
	})
	close(p.gate)
	eventually(t, "the connection is not given up", func() bool { return s.Stats().Connections == 0 })
	if n := p.count.Load(); n != 0 {
		t.Errorf("a call whose client is gone was executed %d times", n)
	}
}

// The end of a connection may lie behind requests that its reader has not come to.
func TestAnEndBehindRequestsIsSeen(t *testing.T) {
	s, p, addr := serve(t, Options{})
	nc := dial(t, addr)
	for i := range uint32(maxInFlight + 1) {
		write(t, nc, record(i, procWait, i))
	}
	eventually(t, "the calls do not come", func() bool { return s.Stats().Active == maxInFlight+1 || s.Stats().Active == maxInFlight })
	gone := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, h := range s.hosts {
			for c := range h.conns {
				return c.peerGone()
			}
		}
		return true
	}
	if gone() {
		t.Error("a connection that is there is taken for one that was left")
	}
	_ = nc.Close()
	eventually(t, "the end is not seen", gone)
	close(p.gate)
}

func TestNoClientFlushesAnothersRepliesFromTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, l, end := servePipes(t, Options{})
		a, b := l.dial("10.0.0.1:700"), l.dial("10.0.0.2:700")
		defer func() { _, _ = a.Close(), b.Close(); end() }()
		ask := func(nc net.Conn, xid uint32) {
			write(t, nc, record(xid, procCount, 1))
			if _, err := message(nc); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint32(100) {
			ask(a, i)
		}
		for i := range uint32(2 * cacheEntries) {
			ask(b, i)
		}
		before := p.count.Load()
		for i := range uint32(100) {
			ask(a, i)
		}
		if n := p.count.Load() - before; n != 0 {
			t.Errorf("%d of 100 calls were executed a second time", n)
		}
		n := 0
		for i := range s.cache.shards {
			n += len(s.cache.shards[i].m)
		}
		if n > cacheEntries {
			t.Errorf("%d entries", n)
		}
	})
}
