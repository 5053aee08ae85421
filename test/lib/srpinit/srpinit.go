// Package srpinit is an initiator of the SCSI RDMA Protocol over any transport.Device, for tests: it does what Linux's ib_srp does, and, where it is asked
// to, what no initiator should. It keeps the credits as a target grants them, unless a test sends on its own.
package srpinit

import (
	"context"
	"errors"
	"fmt"
	"sync"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Linux's defaults: see srp_max_it_iu_len.
const (
	Unit      = 8260
	ImmOffset = 68
)

const (
	receives = 160 // of one channel: more than any target grants credits
	recvSize = 512
)

// Request is a login request as ib_srp makes one.
func Request(initiator, target wire.PortID) wire.LoginReq {
	return wire.LoginReq{Formats: wire.FormatDirect | wire.FormatIndirect, Flags: wire.ImmedRequest, MaxITUnit: Unit, ImmOffset: ImmOffset, Initiator: initiator, Target: target}
}

// RejectedError is a login that the target refused.
type RejectedError struct{ wire.LoginRej }

func (e *RejectedError) Error() string { return "srpinit: login refused: " + e.Reason.String() }

// Channel is one RDMA channel.
type Channel struct {
	Login wire.LoginRsp // what the target answered

	dev  transport.Device
	pool *mem.Pool
	qp   transport.QP
	bufs []*mem.Buf
	recv []mem.Span
	done chan struct{} // closed when the queue pair is
	ends sync.WaitGroup

	mu      sync.Mutex
	wake    *sync.Cond
	credits int
	tag     uint64
	pending map[uint64]*Pending
	windows []transport.Window
	posted  map[uint64]func(error) // by token: what a work request's completion does
	token   uint64
	events  []Event
	err     error
	closed  bool
	deaf    int           // requests of the target's that are not answered, from now on
	frozen  chan struct{} // nothing is polled until it is closed; nil: no
}

// Event is what the target sent unasked.
type Event struct {
	Op     wire.Opcode
	Tag    uint64
	Reason wire.LogoutReason // of SRP_T_LOGOUT
	Grant  int32             // of SRP_CRED_REQ
}

// Dial logs in. pool is registered with dev by the caller.
func Dial(ctx context.Context, dev transport.Device, pool *mem.Pool, addr string, req wire.LoginReq) (*Channel, error) {
	b := make([]byte, wire.LoginReqLen)
	req.Put(b)
	return DialRaw(ctx, dev, pool, addr, b)
}

// DialRaw logs in with private data of the caller's.
func DialRaw(ctx context.Context, dev transport.Device, pool *mem.Pool, addr string, private []byte) (*Channel, error) {
	qp, err := dev.NewQP(transport.QPOptions{Sends: 1024, Recvs: receives})
	if err != nil {
		return nil, err
	}
	c := &Channel{dev: dev, pool: pool, qp: qp, pending: map[uint64]*Pending{}, posted: map[uint64]func(error){}, done: make(chan struct{})}
	c.wake = sync.NewCond(&c.mu)
	buf, err := pool.Get(receives * recvSize)
	if err != nil {
		return nil, errors.Join(err, qp.Close(transport.Reason{}))
	}
	c.bufs = append(c.bufs, buf)
	recvs := make([]transport.Recv, receives)
	for i := range recvs {
		c.recv = append(c.recv, buf.Span().Cut(i*recvSize, recvSize))
		recvs[i] = transport.Recv{Token: uint64(i), Buf: c.recv[i]}
	}
	if _, err = qp.PostRecv(recvs); err != nil {
		return nil, errors.Join(err, c.drop())
	}
	peer, err := dev.Dial(ctx, addr, qp, transport.ConnParams{Private: private, ReadsIn: 4})
	if err != nil {
		var r *transport.RejectedError
		if errors.As(err, &r) {
			if rej, perr := wire.ParseLoginRej(r.Private); perr == nil {
				err = &RejectedError{rej}
			}
		}
		return nil, errors.Join(err, c.drop())
	}
	if c.Login, err = wire.ParseLoginRsp(peer.Private); err != nil {
		return nil, errors.Join(err, c.drop())
	}
	c.credits = int(c.Login.Credits)
	go c.own()
	return c, nil
}

// drop gives up a queue pair that no goroutine owns.
func (c *Channel) drop() error {
	_ = c.qp.Close(transport.Reason{})
	c.drain()
	c.release()
	return nil
}

func (c *Channel) release() {
	for _, b := range c.bufs {
		b.Release()
	}
	c.bufs = nil
}

func (c *Channel) drain() {
	wcs := make([]transport.WC, 64)
	for {
		n, err := c.qp.Poll(wcs)
		c.completed(wcs[:n], true)
		if err != nil {
			return
		}
		if n == 0 {
			_ = c.qp.Wait(context.Background())
		}
	}
}

// own polls until the connection ends.
func (c *Channel) own() {
	defer close(c.done)
	wcs := make([]transport.WC, 64)
	for {
		c.mu.Lock()
		frozen := c.frozen
		c.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		n, err := c.qp.Poll(wcs)
		c.completed(wcs[:n], false)
		if err == nil && n == 0 {
			err = c.qp.Wait(context.Background())
			if errors.Is(err, transport.ErrClosed) {
				err = nil // Poll tells the end when it has nothing more
			}
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

func (c *Channel) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	pending := c.pending
	c.pending = map[uint64]*Pending{}
	c.wake.Broadcast()
	c.mu.Unlock()
	for _, p := range pending {
		p.end(nil, err)
	}
	c.mu.Lock()
	c.release()
	c.mu.Unlock()
}

const sendToken = 1 << 32

func (c *Channel) completed(wcs []transport.WC, over bool) {
	for i := range wcs {
		wc := &wcs[i]
		if wc.Token < sendToken {
			if wc.Err == nil && !over {
				c.received(int(wc.Token), int(wc.Len))
			}
			continue
		}
		c.mu.Lock()
		f := c.posted[wc.Token]
		delete(c.posted, wc.Token)
		c.mu.Unlock()
		if f != nil {
			f(wc.Err)
		}
	}
}

// received handles one unit of the target's.
func (c *Channel) received(i, n int) {
	b := append([]byte(nil), c.recv[i].Bytes()[:n]...)
	_, _ = c.qp.PostRecv([]transport.Recv{{Token: uint64(i), Buf: c.recv[i]}})
	op, err := wire.Unit(b)
	if err != nil {
		c.Close()
		return
	}
	switch op {
	case wire.OpRsp:
		r, err := wire.ParseRsp(b)
		c.mu.Lock()
		p := c.pending[r.Tag]
		delete(c.pending, r.Tag)
		c.credits += int(r.Credits)
		c.wake.Broadcast()
		c.mu.Unlock()
		if p == nil {
			err = fmt.Errorf("srpinit: a response to tag %#x, which is not outstanding", r.Tag)
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
			c.Close()
			return
		}
		p.end(&r, err)
	case wire.OpCredReq:
		grant, tag, _ := wire.ParseCredReq(b)
		c.mu.Lock()
		c.events = append(c.events, Event{Op: op, Tag: tag, Grant: grant})
		c.credits += int(grant)
		deaf := c.deaf > 0
		c.deaf = max(c.deaf-1, 0)
		c.wake.Broadcast()
		c.mu.Unlock()
		if !deaf {
			rsp := make([]byte, wire.ShortLen)
			_ = c.Send(rsp[:wire.PutCredRsp(rsp, tag)])
		}
	case wire.OpTLogout:
		why, tag, _ := wire.ParseTLogout(b)
		c.mu.Lock()
		c.events = append(c.events, Event{Op: op, Tag: tag, Reason: why})
		c.wake.Broadcast()
		c.mu.Unlock()
	}
}

// Deaf leaves the next n requests of the target's without an answer. Their credits count, as with ib_srp when it has no unit to answer in.
func (c *Channel) Deaf(n int) {
	c.mu.Lock()
	c.deaf = n
	c.mu.Unlock()
}

// Freeze has nothing polled from the next completion on, so that no Read is served and no response is seen, until the function that is returned is
// called.
func (c *Channel) Freeze() (thaw func()) {
	ch := make(chan struct{})
	c.mu.Lock()
	c.frozen = ch
	c.mu.Unlock()
	return sync.OnceFunc(func() {
		c.mu.Lock()
		c.frozen = nil
		c.mu.Unlock()
		close(ch)
	})
}

// Events are what the target sent unasked so far.
func (c *Channel) Events() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Event(nil), c.events...)
}

// EventsLocked is Events for what Await asks.
func (c *Channel) EventsLocked() []Event { return c.events }

// Credits is how many requests may be sent now.
func (c *Channel) Credits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.credits
}

// CreditsLocked is Credits for what Await asks.
func (c *Channel) CreditsLocked() int { return c.credits }

// Await returns when done, which is asked under the lock whenever something has come, says so.
func (c *Channel) Await(ctx context.Context, done func() bool) error {
	stop := context.AfterFunc(ctx, func() {
		c.mu.Lock()
		c.wake.Broadcast()
		c.mu.Unlock()
	})
	defer stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	for !done() {
		if err := errors.Join(ctx.Err(), c.err); err != nil {
			return err
		}
		c.wake.Wait()
	}
	return nil
}

// Done is closed when the connection has ended.
func (c *Channel) Done() <-chan struct{} { return c.done }

// Close ends the connection and waits for it.
func (c *Channel) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	_ = c.qp.Close(transport.Reason{})
}

// End is Close that waits until nothing of the channel is left.
func (c *Channel) End() {
	c.Close()
	<-c.done
	c.ends.Wait()
}

// post posts one work request; then is called with its completion.
func (c *Channel) post(wr transport.WR, then func(error)) error {
	c.mu.Lock()
	c.token++
	wr.Token = sendToken | c.token
	wr.Flags |= transport.Signaled
	c.posted[wr.Token] = then
	c.mu.Unlock()
	_, err := c.qp.Post([]transport.WR{wr})
	if err != nil {
		c.mu.Lock()
		delete(c.posted, wr.Token)
		c.mu.Unlock()
	}
	return err
}

// Send sends bytes as they are.
func (c *Channel) Send(unit []byte) error {
	b, err := c.pool.Get(max(len(unit), 1))
	if err != nil {
		return err
	}
	copy(b.Bytes(), unit)
	if err := c.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{b.Span().Cut(0, len(unit))}}, func(error) { b.Release() }); err != nil {
		b.Release()
		return err
	}
	return nil
}

// Expose makes memory of the initiator's reachable: n bytes, for the target to write or to read. The function that is returned ends it.
func (c *Channel) Expose(n int, access transport.Access) (*mem.Buf, transport.Remote, func(), error) {
	b, err := c.pool.Get(n)
	if err != nil {
		return nil, transport.Remote{}, nil, err
	}
	c.mu.Lock()
	var w transport.Window
	if k := len(c.windows); k > 0 {
		w, c.windows = c.windows[k-1], c.windows[:k-1]
	}
	c.mu.Unlock()
	if w == nil {
		if w, err = c.qp.NewWindow(); err != nil {
			b.Release()
			return nil, transport.Remote{}, nil, err
		}
	}
	if err = c.post(transport.WR{Op: transport.OpBind, Window: w, Access: access, Local: []mem.Span{b.Span()}}, func(error) {}); err != nil {
		b.Release()
		return nil, transport.Remote{}, nil, err
	}
	end := func() {
		invalid := make(chan struct{})
		if err := c.post(transport.WR{Op: transport.OpInvalidate, Window: w}, func(error) { close(invalid) }); err != nil {
			close(invalid)
		}
		select {
		case <-invalid:
			c.mu.Lock()
			c.windows = append(c.windows, w)
			c.mu.Unlock()
		case <-c.done:
		}
		b.Release()
	}
	return b, w.Remote(), end, nil
}
