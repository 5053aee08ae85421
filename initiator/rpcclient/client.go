package rpcclient

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
)

// Auth is a credential in its wire form (opaque_auth, RFC 5531 section 8.2). The zero value is AUTH_NONE.
type Auth struct {
	Flavor uint32
	Body   []byte
}

// Call is one call. Its memory belongs to the client from Client.Do's call to its return.
type Call struct {
	Prog, Vers, Proc uint32
	Cred             Auth
	// Args are the encoded arguments, up to and with the length of Data.
	Args []byte
	// Data is bulk data that ends the arguments; its padding is added.
	Data []byte
	// Sink takes the bulk data that ends the results, by Result. nil: there is none.
	Sink []byte
	// DataSpan and SinkSpan stand for Data and Sink in registered memory: over RDMA the server reads and writes it where
	// it is, and nothing is copied. Over TCP they are memory like any other.
	DataSpan, SinkSpan mem.Span
	// MaxReply bounds the results without Sink, bytes; 0 means that they fit an inline message.
	MaxReply int

	// Results are the encoded results when Do returned nil, up to the bulk data that Result takes.
	Results []byte

	reply  []byte
	placed int      // bytes of the sink's data that came by chunk, 0 for none
	bounce *mem.Buf // and is here, got bytes of it, on its way to Sink
	got    int
}

func (c *Call) data() []byte {
	if c.DataSpan.Slab != nil {
		return c.DataSpan.Bytes()
	}
	return c.Data
}

func (c *Call) sink() []byte {
	if c.SinkSpan.Slab != nil {
		return c.SinkSpan.Bytes()
	}
	return c.Sink
}

// settle copies what came by chunk, on the caller's goroutine: the connection's owner has others to serve.
func (c *Call) settle() {
	if c.bounce == nil {
		return
	}
	copy(c.Sink, c.bounce.Bytes()[:c.got])
	c.bounce.Release()
	c.bounce = nil
}

// Result takes n bytes of bulk data into Sink. n was read from Results, and rest is what of Results follows it.
func (c *Call) Result(rest []byte, n int) error {
	sink := c.sink()
	if n < 0 || n > len(sink) {
		return fmt.Errorf("rpc: the server returned %d bytes where %d were asked for", n, len(sink))
	}
	if c.placed > 0 {
		// A server may write the padding too (RFC 8166 section 3.4.6.2 tells it not to).
		if n > c.placed || c.placed > n+3 {
			return fmt.Errorf("rpc: the server placed %d bytes and says that they are %d (RFC 8166 section 4.3.2)", c.placed, n)
		}
		return nil
	}
	if len(rest) < n+xdr.Pad(n) {
		return xdr.ErrShort
	}
	copy(sink, rest[:n])
	return nil
}

// conn is one connection of a client.
type conn interface {
	// start sends a call whose header and arguments are in p.msg; the reply, or the connection's end, comes later.
	// It never waits for the peer.
	start(p *pending)
	// forget is told that no caller waits for a call any more; its memory is not to be touched after the return.
	forget(p *pending)
	// close ends the connection; its end is reported to the client by ended, once, on another goroutine, when nothing touches the
	// memory of calls any more.
	close()
}

// Dialer makes a client's connections: TCP, Stream and RDMA.Dialer return one.
type Dialer interface {
	// dial makes a connection that reports to the client.
	dial(ctx context.Context, c *Client) (conn, error)
}

type dialFunc func(ctx context.Context, c *Client) (conn, error)

func (f dialFunc) dial(ctx context.Context, c *Client) (conn, error) { return f(ctx, c) }

// Client makes calls to one server. Its methods may be called by any goroutine.
type Client struct {
	dialer  Dialer
	woken   func() <-chan struct{}
	timeout time.Duration

	mu       sync.Mutex
	conn     conn
	dead     conn // the last one that ended before all calls were given to it
	dialing  bool
	began    time.Time       // when the last connection was begun, or could not be made
	pause    time.Duration   // from then to the next attempt; 0 after a reply
	wake     <-chan struct{} // ends the pause: of woken, from before the last attempt
	starting bool            // calls are being given to conn, which is there until that is done, dead or not: it guards their memory
	closed   bool
	xid      uint32
	pending  map[uint32]*pending
	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	stats    Stats
}

// Stats count what happened to a client.
type Stats struct{ Connects, Resent uint64 }

// pending is a call that has no reply yet.
type pending struct {
	call *Call
	xid  uint32
	msg  []byte // header and arguments
	done chan error
	// The connection's, guarded by its lock:
	slot    *slot
	staged  *mem.Buf // Data, copied before there was a slot
	copying bool     // Data is being copied
	forgot  bool     // by the connection: not to be sent any more
}

// Options configure a client.
type Options struct {
	Timeout time.Duration // for a reply, before the connection is made again; 0 for a default
	// Woken, if there is one, returns a channel that is closed when there may be a way to the server again.
	Woken func() <-chan struct{}
}

// NewClient returns a client of the server that dial reaches. It connects with the first call.
func NewClient(dial Dialer, o Options) *Client {
	c := &Client{dialer: dial, woken: o.Woken, timeout: o.Timeout, pending: make(map[uint32]*pending)}
	if c.woken == nil {
		c.woken = func() <-chan struct{} { return nil }
	}
	if c.timeout <= 0 {
		c.timeout = defaultTimeout
	}
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails; and any number will do
	c.xid = binary.BigEndian.Uint32(b[:])
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close ends the connection and all calls. Callers are told when nothing touches their memory any more.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	conn := c.conn
	c.cancel()
	if conn == nil {
		c.endLocked(ErrClosed)
	}
	c.mu.Unlock()
	if conn != nil {
		conn.close()
	}
	c.wg.Wait()
	return nil
}

// Stats is a reading of the counters.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

func (c *Client) endLocked(err error) {
	for x, p := range c.pending {
		delete(c.pending, x)
		p.done <- err
	}
}

// Do makes a call and waits for its reply, for as long as the context lets it: a server that is away is waited for. A
// refusal is a *ReplyError, and a reply that breaks the protocol a *ProtocolError.
func (c *Client) Do(ctx context.Context, call *Call) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("rpc: not sent: %w", err) // a fast reply could win against the context below
	}
	p := &pending{call: call, done: make(chan error, 1)}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.xid++
	p.xid = c.xid
	h := oncrpc.Call{XID: p.xid, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Cred: oncrpc.Auth(call.Cred)}
	p.msg = append(h.Append(make([]byte, 0, 128+len(call.Args))), call.Args...)
	c.pending[p.xid] = p
	c.wg.Add(1) // Close waits for copies to and from memory that dies with it
	conn := c.conn
	if conn == nil {
		c.connectLocked()
	}
	c.mu.Unlock()
	if conn != nil {
		conn.start(p)
	}
	defer c.wg.Done()
	return c.wait(ctx, p)
}

func (c *Client) wait(ctx context.Context, p *pending) error {
	t := time.NewTimer(c.timeout)
	defer t.Stop()
	for {
		select {
		case err := <-p.done:
			return p.finish(err)
		case <-ctx.Done():
			c.mu.Lock()
			_, open := c.pending[p.xid]
			delete(c.pending, p.xid)
			conn := c.conn
			c.mu.Unlock()
			if conn != nil {
				conn.forget(p)
			}
			if !open {
				return p.finish(<-p.done) // its reply is here, or being filled in just now
			}
			return fmt.Errorf("rpc: no reply: %w", ctx.Err())
		case <-t.C:
			// RFC 5531 leaves the repair to the client: a connection on which nothing comes back is made again, and
			// that sends all calls again.
			c.mu.Lock()
			conn := c.conn
			c.mu.Unlock()
			if conn != nil {
				conn.close()
			}
			t.Reset(c.timeout)
		}
	}
}

// finish takes the reply, or what came in its place.
func (p *pending) finish(err error) error {
	p.call.settle()
	if err != nil {
		return err
	}
	r := xdr.NewReader(p.call.reply)
	if _, err := oncrpc.ParseReply(&r); err != nil {
		return replyError(err)
	}
	p.call.Results = r.Rest()
	return nil
}

// connectLocked makes a connection in the background and sends all pending calls over it.
func (c *Client) connectLocked() {
	if c.dialing || c.closed {
		return
	}
	c.dialing = true
	c.wg.Add(1)
	go c.connect()
}

func (c *Client) connect() {
	defer c.wg.Done()
	for c.rest() {
		ctx, cancel := context.WithTimeout(c.ctx, dialTimeout)
		conn, err := c.dialer.dial(ctx, c)
		cancel()
		c.mu.Lock()
		switch {
		case err == nil && c.closed:
			c.mu.Unlock()
			conn.close()
			return
		case err == nil:
			c.useAndUnlock(conn)
			return
		case c.closed || c.stats.Connects == 0:
			// The first attempt tells whether the address is right at all.
			c.dialing = false
			c.endLocked(err)
			c.mu.Unlock()
			return
		}
		c.began = time.Now()
		c.mu.Unlock()
	}
}

// rest waits until a connection may be tried again, and reports false when the client is closed. Also one that was made and ended before
// there was a reply is followed by a pause: what a server says to a call may end each.
func (c *Client) rest() bool {
	c.mu.Lock()
	pause, wake := time.Until(c.began.Add(c.pause)), c.wake
	c.mu.Unlock()
	woken := false
	if pause > 0 {
		t := time.NewTimer(pause)
		defer t.Stop()
		select {
		case <-t.C:
		case <-wake:
			woken = true
		case <-c.ctx.Done():
			return false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if woken {
		c.pause = 0
	}
	c.wake = c.woken() // before the attempt: what comes while it is made counts
	c.began, c.pause = time.Now(), min(max(2*c.pause, minBackoff), maxBackoff)
	return true
}

// useAndUnlock gives a new connection all pending calls. The lock is held on entry.
func (c *Client) useAndUnlock(conn conn) {
	c.conn, c.dialing, c.starting = conn, false, true
	first := c.stats.Connects == 0
	c.stats.Connects++
	l := make([]*pending, 0, len(c.pending))
	for _, p := range c.pending {
		l = append(l, p)
	}
	if !first {
		c.stats.Resent += uint64(len(l))
	}
	c.mu.Unlock()
	for _, p := range l {
		conn.start(p)
	}
	c.mu.Lock()
	c.starting = false
	gone := c.dead == conn
	c.mu.Unlock()
	if gone {
		c.ended(conn)
	}
}

// ended is a connection's report of its end.
func (c *Client) ended(from conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != from || c.starting {
		c.dead = from
		return
	}
	c.conn, c.dead = nil, nil
	switch {
	case c.closed:
		c.endLocked(ErrClosed)
	case len(c.pending) > 0:
		c.connectLocked()
	}
}

// take finds the call that a reply is for and removes it, so that only one reply counts.
func (c *Client) take(xid uint32) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[xid]
	if p != nil {
		delete(c.pending, xid)
		c.pause = 0 // the connection is good for something
	}
	return p
}

// takeFailed is take for a reply that breaks a rule, which ends the connection: to send the call again would bring the same reply.
func (c *Client) takeFailed(xid uint32) *pending {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[xid]
	delete(c.pending, xid)
	return p
}
