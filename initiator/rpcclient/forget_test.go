package rpcclient

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// byHand is a connection whose steps the test makes.
type byHand struct {
	started chan struct{} // start was called
	letGo   chan struct{} // start returns, and with it forget
	closed  chan struct{}
}

func (k *byHand) start(*pending) {
	close(k.started)
	<-k.letGo
}
func (k *byHand) forget(*pending) { <-k.letGo }
func (k *byHand) close()          { close(k.closed) }

// A connection that is closed is not out of reach of callers' memory before it says so.
func TestCloseTellsCallersWhenTheConnectionHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &byHand{make(chan struct{}), make(chan struct{}), make(chan struct{})}
		close(k.letGo)
		c := NewClient(dialFunc(func(context.Context, *Client) (conn, error) { return k, nil }), Options{})
		over, closed := make(chan error, 1), make(chan error, 1)
		go func() { over <- c.Do(t.Context(), &Call{}) }()
		<-k.started
		synctest.Wait()
		go func() { closed <- c.Close() }()
		<-k.closed
		if isOver(over) {
			t.Error("the call is over while its memory can be reached")
		}
		c.ended(k)
		if err := <-over; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// A call may be about to be sent by the goroutine that has connected when its caller gives up, or the client is closed, although the
// connection has ended by then.
func TestACallThatIsBeingGivenToADeadConnectionIsNotOver(t *testing.T) {
	for name, end := range map[string]func(c *Client, cancel func()){
		"the caller gives up":  func(_ *Client, cancel func()) { cancel() },
		"the client is closed": func(c *Client, _ func()) { go func() { _ = c.Close() }() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := &byHand{make(chan struct{}), make(chan struct{}), make(chan struct{})}
				dials := 0
				c := NewClient(dialFunc(func(context.Context, *Client) (conn, error) {
					if dials++; dials > 1 {
						return nil, errNobody
					}
					return k, nil
				}), Options{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan error, 1)
				go func() { over <- c.Do(ctx, &Call{}) }()
				<-k.started
				c.ended(k)
				end(c, cancel)
				if isOver(over) {
					t.Error("the call is over while it is being sent")
				}
				close(k.letGo)
				if err := <-over; !errors.Is(err, context.Canceled) && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
				_ = c.Close()
			})
		})
	}
}

// registering is what a pool registers slabs with, which takes until the test lets it go.
type registering struct{ begun, letGo chan struct{} }

func (r *registering) Register(*mem.Slab) error {
	close(r.begun)
	<-r.letGo
	return nil
}
func (r *registering) Unregister(*mem.Slab) error { return nil }

// The data of a call is copied without the lock, and by another goroutine than the caller's where the call is sent again.
func TestDataThatIsBeingCopiedIsNotTheCallersYet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool, reg := mem.NewPool(8<<20), &registering{make(chan struct{}), make(chan struct{})}
		if err := pool.OnSlab(reg); err != nil {
			t.Fatal(err)
		}
		l := &rdma{r: &RDMA{pool: pool}, quota: pool.Quota(8 << 20), maxSend: inline}
		l.copied.L = &l.mu
		p := &pending{call: &Call{Data: make([]byte, 64<<10)}}
		var started, back = make(chan error, 1), make(chan error, 1)
		go func() { l.start(p); started <- nil }()
		<-reg.begun
		go func() { l.forget(p); back <- nil }()
		if isOver(back) {
			t.Error("the data is the caller's again while it is being copied")
		}
		close(reg.letGo)
		<-back
		<-started
		if len(l.queue) > 0 || p.staged != nil || l.quota.Held() != 0 {
			t.Errorf("%d calls are queued, %d bytes held", len(l.queue), l.quota.Held())
		}
		l.quota.Close()
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	})
}

// slabDevice is a device without windows.
type slabDevice struct{ transport.Device }

func (slabDevice) Caps() transport.Caps { return transport.Caps{InOrder: true} }

// closing is a queue pair that tells when it is closed.
type closing struct {
	transport.QP
	told chan struct{}
}

func (q closing) Close(transport.Reason) error {
	close(q.told)
	return nil
}

// stuck is a connection whose Write of the data of a call goes on until it is let go, whatever becomes of the connection: a system
// call that copies from the caller's memory.
type stuck struct {
	net.Conn
	data    int // bytes
	entered chan struct{}
	letGo   chan struct{}
}

func (c *stuck) Write(p []byte) (int, error) {
	if len(p) == c.data {
		close(c.entered)
		<-c.letGo
	}
	return c.Conn.Write(p)
}

// isOver reports whether something has come when nothing else is left to do.
func isOver(c <-chan error) bool {
	synctest.Wait()
	return len(c) > 0
}

// While the system call runs that sends a call its memory is read, also when the connection has ended, or when the server has answered
// what it has not read: the memory is not the caller's yet.
func TestMemoryIsTheCallersAgainWhenTheWriterHasLeftIt(t *testing.T) {
	for name, c := range map[string]struct {
		serve  func(nc net.Conn, xid uint32)
		cancel bool
		want   error
	}{
		"the connection ends, and the caller gives up": {func(net.Conn, uint32) {}, true, context.Canceled},
		"the server answers early": {func(nc net.Conn, xid uint32) {
			reply(nc, xid, 42)
			_, _ = io.Copy(io.Discard, nc)
		}, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &stuck{data: 1000, entered: make(chan struct{}), letGo: make(chan struct{})}
				s := &script{t: t}
				s.conns = []func(net.Conn){func(nc net.Conn) {
					head := make([]byte, 4+4) // the rest of the message is read with what comes behind the data
					if _, err := io.ReadFull(nc, head); err != nil {
						return
					}
					n, _ := oncrpc.ParseMark(head)
					_, _ = io.CopyN(io.Discard, nc, int64(n-4-w.data))
					<-w.entered
					c.serve(nc, binary.BigEndian.Uint32(head[4:]))
				}}
				cl := NewClient(Stream(func(ctx context.Context) (net.Conn, error) {
					nc, err := s.dial(ctx)
					if err != nil {
						return nil, err
					}
					w.Conn = nc
					return w, nil
				}), Options{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				over := make(chan error, 1)
				go func() { over <- cl.Do(ctx, &Call{Prog: 1, Vers: 1, Proc: 1, Data: make([]byte, w.data)}) }()
				<-w.entered
				synctest.Wait()
				if c.cancel {
					cancel()
				}
				if isOver(over) {
					t.Errorf("the call is over while its memory is being sent: %v", <-over)
					over <- c.want
				}
				close(w.letGo)
				if err := <-over; !errors.Is(err, c.want) {
					t.Error(err)
				}
				if err := cl.Close(); err != nil {
					t.Error(err)
				}
				s.wg.Wait()
			})
		})
	}
}

// A server that takes no bytes does not hold a caller who gives up.
func TestAServerThatDoesNotReadHoldsNoCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{t: t}
		end := make(chan struct{})
		s.conns = []func(net.Conn){func(net.Conn) { <-end }}
		c := NewClient(Stream(s.dial), Options{})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		if _, err := do(ctx, c); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second+stallTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(end)
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		s.wg.Wait()
	})
}

// Where an STag is a whole slab's, a caller who gives up has its memory back when the connection is gone and not before: what was
// sent may be carried out while it ends.
func TestMemoryOfAWholeSlabIsTheCallersAgainWhenTheConnectionIsGone(t *testing.T) {
	q := closing{told: make(chan struct{})}
	l := &rdma{r: &RDMA{dev: slabDevice{}}, qp: q, byXID: map[uint32]*slot{}}
	s, p := &l.slots[0], &pending{}
	s.p, p.slot = p, s
	s.data.bound, s.data.local[0] = true, mem.Span{Len: 8} // the caller's own
	back := make(chan struct{})
	go func() {
		defer close(back)
		l.forget(p)
	}()
	<-q.told
	l.mu.Lock() // forget waits by now
	gone := s.gone
	l.completeLocked(&transport.WC{Op: transport.OpSend, Token: kindSend})
	select {
	case <-gone:
		t.Error("the memory is the caller's again while the server may write to it")
	default:
	}
	s.tellGone() // the connection's end
	l.mu.Unlock()
	<-back
}
