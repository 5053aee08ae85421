package rpcclient

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a server of pipes: each connection that is made is handed to the next of its functions.
type script struct {
	t     *testing.T
	mu    sync.Mutex
	conns []func(net.Conn)
	dials int
	wg    sync.WaitGroup
}

var errNobody = errors.New("nobody listens")

func (s *script) dial(context.Context) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if len(s.conns) == 0 {
		return nil, errNobody
	}
	f := s.conns[0]
	s.conns = s.conns[1:]
	if f == nil {
		return nil, errNobody
	}
	a, b := net.Pipe()
	s.wg.Go(func() { f(b); _ = b.Close() })
	return a, nil
}

// call reads one call and returns its XID.
func call(nc net.Conn) (uint32, error) {
	var mark [4]byte
	if _, err := io.ReadFull(nc, mark[:]); err != nil {
		return 0, err
	}
	n, _ := oncrpc.ParseMark(mark[:])
	b := make([]byte, n)
	if _, err := io.ReadFull(nc, b); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint32(b), nil
}

func reply(nc net.Conn, xid, result uint32) {
	b := xdr.AppendUint32(oncrpc.AppendReply(make([]byte, 4), xid, oncrpc.Success), result)
	oncrpc.PutMark(b, len(b)-4, true)
	_, _ = nc.Write(b)
}

func echo(nc net.Conn) {
	for {
		xid, err := call(nc)
		if err != nil {
			return
		}
		reply(nc, xid, 42)
	}
}

func do(ctx context.Context, c *Client) (uint32, error) {
	k := Call{Prog: 1, Vers: 1, Proc: 1}
	if err := c.Do(ctx, &k); err != nil {
		return 0, err
	}
	r := xdr.NewReader(k.Results)
	return r.Uint32(), r.Err()
}

func TestResentWithItsXIDWhenTheConnectionBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var first uint32
		var got []uint32
		s := &script{t: t}
		s.conns = []func(net.Conn){
			func(nc net.Conn) { first, _ = call(nc) }, // takes the call and dies
			nil, nil, nil, // nobody listens for a while
			func(nc net.Conn) {
				for {
					xid, err := call(nc)
					if err != nil {
						return
					}
					got = append(got, xid)
					reply(nc, xid, 42)
				}
			},
		}
		c := NewClient(Stream(s.dial), Options{})
		if v, err := do(t.Context(), c); v != 42 || err != nil {
			t.Fatal(v, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
		if len(got) != 1 || got[0] != first || s.dials != 5 || c.Stats().Resent != 1 {
			t.Fatalf("sent %d first and %v then, %d dials, %+v", first, got, s.dials, c.Stats())
		}
	})
}

// When the port of the adapter is back nothing waits for the end of a pause.
func TestAConnectionIsMadeAtOnceWhenThePortIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		woken := make(chan struct{})
		s := &script{t: t}
		s.conns = []func(net.Conn){
			func(nc net.Conn) { _, _ = call(nc) }, // takes the call and dies
			nil, nil, nil, nil, nil,               // the last pause begins after 3.1 s and lasts 3.2
			echo,
		}
		c := NewClient(Stream(s.dial), Options{Woken: func() <-chan struct{} { return woken }})
		began := time.Now()
		time.AfterFunc(4*time.Second, func() { close(woken) })
		if v, err := do(t.Context(), c); v != 42 || err != nil {
			t.Fatal(v, err)
		}
		if d := time.Since(began); d != 4*time.Second {
			t.Errorf("connected after %v", d)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
	})
}

// A server that takes connections and ends each without a reply is asked at growing intervals, and at once again after a reply.
func TestConnectionsThatEndWithoutAReplyAreNotMadeInALoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t}
		for range 1000 {
			s.conns = append(s.conns, func(nc net.Conn) { _, _ = call(nc) })
		}
		c := NewClient(Stream(s.dial), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := do(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		// After 0.1, 0.2, 0.4, ... 6.4 s and then every 10 s.
		if s.dials < 10 || s.dials > 13 {
			t.Errorf("%d connections in a minute", s.dials)
		}
		once := func(nc net.Conn) {
			if xid, err := call(nc); err == nil {
				reply(nc, xid, 42)
			}
		}
		s.mu.Lock()
		s.conns = []func(net.Conn){once, once, func(nc net.Conn) { _, _ = call(nc) }, once}
		s.mu.Unlock()
		time.Sleep(time.Minute) // nothing is to be sent, and so no connection to be made
		for k, want := range []time.Duration{0, 0, minBackoff} {
			began := time.Now()
			if v, err := do(t.Context(), c); v != 42 || err != nil || time.Since(began) != want {
				t.Errorf("call %d: %d, %v after %v", k, v, err, time.Since(began))
			}
			synctest.Wait() // the end of the connection is known
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
	})
}

// A reply that breaks a rule would be the same the next time: its call fails with the reason, and the others are sent again.
func TestAReplyThatBreaksARuleEndsItsCall(t *testing.T) {
	for name, c := range map[string]struct{ before, marks []byte }{
		"too long":                        {nil, []byte{0xff, 0xff, 0xff, 0xff}},
		"too long with its last fragment": {[]byte{0, 0, 0, 4}, []byte{0x80, 0x20, 0, 0}},
		"in too many fragments":           {[]byte{0, 0, 0, 4}, make([]byte, 4*maxFragments)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{t: t}
				s.conns = []func(net.Conn){func(nc net.Conn) {
					xid, _ := call(nc)
					if _, err := call(nc); err != nil {
						return
					}
					id := binary.BigEndian.AppendUint32(nil, xid)
					if c.before == nil {
						_, _ = nc.Write(append(append([]byte(nil), c.marks...), id...))
					} else {
						_, _ = nc.Write(append(append(append([]byte(nil), c.before...), id...), c.marks...))
					}
					_, _ = io.Copy(io.Discard, nc)
				}, echo}
				cl := NewClient(Stream(s.dial), Options{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				over := make(chan error, 2)
				for range 2 {
					go func() { _, err := do(ctx, cl); over <- err }()
				}
				a, b := <-over, <-over
				if b != nil {
					a, b = b, a
				}
				var pe *ProtocolError
				var re *oncrpc.RecordError
				if b != nil || !errors.As(a, &pe) || !errors.As(a, &re) || s.dials != 2 {
					t.Errorf("%v and %v after %d connections", a, b, s.dials)
				}
				if err := cl.Close(); err != nil {
					t.Fatal(err)
				}
				s.wg.Wait()
			})
		})
	}
}

func TestSilentConnectionIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t}
		s.conns = []func(net.Conn){
			func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) }, // reads and never answers
			echo,
		}
		c := NewClient(Stream(s.dial), Options{Timeout: time.Minute})
		start := time.Now()
		if v, err := do(t.Context(), c); v != 42 || err != nil {
			t.Fatal(v, err)
		}
		if d := time.Since(start); d < time.Minute || d > time.Minute+time.Second {
			t.Fatalf("answered after %v", d)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
	})
}

func TestFirstConnectionFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewClient(Stream((&script{t: t}).dial), Options{})
		if _, err := do(t.Context(), c); !errors.Is(err, errNobody) {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := do(t.Context(), c); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	})
}

func TestContextEndsACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t, conns: []func(net.Conn){func(nc net.Conn) { _, _ = io.Copy(io.Discard, nc) }}}
		c := NewClient(Stream(s.dial), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := do(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
	})
}

// The caller has given up by then: a WRITE must not take place, however fast its reply would be.
func TestACallWhoseContextHasEndedIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t}
		s.conns = []func(net.Conn){echo}
		c := NewClient(Stream(s.dial), Options{})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := do(ctx, c)
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || s.dials != 0 {
			t.Errorf("%v after %d dials", err, s.dials)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
	})
}

func TestRepliesOutOfOrderAndToNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t, conns: []func(net.Conn){func(nc net.Conn) {
			a, _ := call(nc)
			b, err := call(nc)
			if err != nil {
				return
			}
			reply(nc, b+1000, 1)
			reply(nc, b, b)
			reply(nc, b, 2)
			reply(nc, a, a)
			_, _ = io.Copy(io.Discard, nc)
		}}}
		c := NewClient(Stream(s.dial), Options{})
		var wg sync.WaitGroup
		seen := make(chan uint32, 2)
		for range 2 {
			wg.Go(func() {
				v, err := do(t.Context(), c)
				if err != nil {
					t.Error(err)
				}
				seen <- v
			})
		}
		wg.Wait()
		if a, b := <-seen, <-seen; a == b || a+b < 3 {
			t.Fatalf("replies %d and %d", a, b)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		s.wg.Wait()
	})
}

func FuzzReadRecord(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 4, 1, 2, 3, 4})
	f.Add([]byte{0, 0, 0, 1, 1, 0x80, 0, 0, 1, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		a, z := net.Pipe()
		go func() { _, _ = a.Write(b); _ = a.Close() }()
		msg, err := readRecord(bufio.NewReader(z))
		_ = z.Close()
		if err == nil && len(msg) > len(b) {
			t.Fatalf("%d bytes out of %d", len(msg), len(b))
		}
	})
}
