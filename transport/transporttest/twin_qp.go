package transporttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// qp is one queue pair of a twin. Everything but wake is guarded by net.mu.
type qp struct {
	dev  *twin
	opts transport.QPOptions
	wake chan struct{}

	taken bool
	peer  *qp
	depth transport.Depth
	err   error // why it is closed

	// Work of this side.
	sendq  []*work // not started, or started in part
	reads  []*work // Read Requests sent, oldest first
	nsend  int     // of opts.Sends
	nread  int     // of depth.Out, those still in sendq included
	recvs  []transport.Recv
	nrecv  int // of opts.Recvs
	placed int // bytes of recvs[0] that hold a Send in progress
	cq     []transport.WC

	// Where completions come in order:
	order  []*work // posted, oldest first
	lag    int     // places of unsignaled requests that the next completion gives back
	places []int   // what each completion in cq that is no receive's gives back

	// Work for the peer.
	resps     []*response
	holdReads bool
	lastResp  bool // the last message begun was a response: the next is a work request's, if one can start
	bound     map[uint32]*binding

	// The link's end: what the peer sent and Poll has not taken.
	inbox      []frame
	inboxBytes int
}

var _ transport.QP = (*qp)(nil)

// work is a work request on its way.
type work struct {
	transport.WR
	local []mem.Span // the caller's slice is the caller's again
	total int
	sent  int
	bind  *binding // Bind, Invalidate
	done  bool
}

// response is a Read Response on its way.
type response struct {
	from  place
	total int
	sent  int
}

// binding is one life of a window.
type binding struct {
	stag   uint32
	base   uint64
	local  []mem.Span
	size   int
	access transport.Access
	dead   bool
	slab   *mem.Slab // an adapter's
}

// window is a transport.Window.
type window struct {
	q *qp
	// Guarded by net.mu.
	cur   *binding
	index uint32 // an adapter's
	key   uint8
}

func (w *window) Remote() transport.Remote {
	w.q.dev.net.mu.Lock()
	defer w.q.dev.net.mu.Unlock()
	if w.cur == nil {
		return transport.Remote{}
	}
	return transport.Remote{STag: w.cur.stag, Off: w.cur.base}
}

func (w *window) Valid() bool {
	w.q.dev.net.mu.Lock()
	defer w.q.dev.net.mu.Unlock()
	return w.cur != nil && !w.cur.dead
}

func (q *qp) NewWindow() (transport.Window, error) {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	if q.err != nil {
		return nil, q.err
	}
	return &window{q: q}, nil
}

func (q *qp) Depth() transport.Depth {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	return q.depth
}

// Widen implements transport.Widener. A twin registers nothing for a queue pair alone; Slim tells what was asked for.
func (q *qp) Widen() error {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	q.opts.Slim = false
	return nil
}

// Slim reports whether a twin's queue pair is still to register no more memory than it uses.
func Slim(of transport.QP) bool {
	q := of.(*qp)
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	return q.opts.Slim
}

func (q *qp) PostRecv(recvs []transport.Recv) (int, error) {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	for i, r := range recvs {
		if q.err != nil {
			return i, q.err
		}
		if q.nrecv >= q.opts.Recvs {
			return i, transport.ErrQueueFull
		}
		if err := q.dev.checkLocked(r.Buf); err != nil {
			return i, err
		}
		q.nrecv++
		q.recvs = append(q.recvs, r)
	}
	if q.dev.like != nil {
		wake(q.wake) // a Send may be waiting for it
	}
	return len(recvs), nil
}

func (q *qp) Post(wrs []transport.WR) (int, error) {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	for i := range wrs {
		if err := q.postLocked(&wrs[i]); err != nil {
			q.pumpLocked()
			return i, err
		}
	}
	q.pumpLocked()
	return len(wrs), nil
}

func (q *qp) postLocked(wr *transport.WR) error {
	if q.err != nil {
		return q.err
	}
	if q.peer == nil && wr.Op != transport.OpBind && wr.Op != transport.OpInvalidate {
		return errors.New("twin: a work request before the connection")
	}
	if q.nsend >= q.opts.Sends {
		return transport.ErrQueueFull
	}
	w := &work{WR: *wr}
	if err := q.sizeLocked(w); err != nil {
		return err
	}
	switch wr.Op {
	case transport.OpRead:
		if q.nread >= q.depth.Out {
			return transport.ErrTooManyReads
		}
		q.nread++
	case transport.OpBind, transport.OpInvalidate:
		win, ok := wr.Window.(*window)
		if !ok || win.q != q {
			return errors.New("twin: the window belongs to another queue pair")
		}
		// In force from here: nothing that is posted later can overtake it (rule 4).
		if wr.Op == transport.OpBind {
			q.bindLocked(win, w)
		}
		w.bind = win.cur
		if w.bind == nil {
			return errors.New("twin: invalidate of a window that was never bound")
		}
	}
	w.local, w.Local = slices.Clone(wr.Local), nil
	if w.bind != nil && wr.Op == transport.OpBind {
		w.bind.local = w.local
	}
	q.nsend++
	q.sendq = append(q.sendq, w)
	if q.dev.like != nil {
		q.order = append(q.order, w)
	}
	return nil
}

// sizeLocked checks what a work request names here and sums its bytes.
func (q *qp) sizeLocked(w *work) error {
	switch w.Op {
	case transport.OpSend, transport.OpSendInv, transport.OpWrite, transport.OpRead, transport.OpBind, transport.OpInvalidate:
	default:
		return fmt.Errorf("twin: unknown work request %d", w.Op)
	}
	caps := q.dev.Caps()
	if len(w.WR.Local) > caps.MaxSGE || w.Op == transport.OpRead && len(w.WR.Local) != 1 || w.Op == transport.OpBind && len(w.WR.Local) > caps.MaxBindSGE {
		return fmt.Errorf("twin: %d pieces of memory, %d are the most, a Read has one and a Bind %d", len(w.WR.Local), caps.MaxSGE, caps.MaxBindSGE)
	}
	for _, s := range w.WR.Local {
		if err := q.dev.checkLocked(s); err != nil {
			return err
		}
		w.total += s.Len
	}
	if w.Op == transport.OpBind && w.total == 0 {
		return errors.New("twin: a Bind of no memory")
	}
	if w.total > twinMaxMessage && w.Op != transport.OpBind {
		return fmt.Errorf("twin: a message of %d bytes, %d are the most", w.total, twinMaxMessage)
	}
	return nil
}

// checkLocked refuses memory that the device was never told of.
func (d *twin) checkLocked(s mem.Span) error {
	if s.Len == 0 {
		return nil
	}
	if s.Slab == nil || d.slabs[s.Slab.ID()] != s.Slab {
		return errors.New("twin: the memory is not registered with this device")
	}
	if s.Off < 0 || s.Len < 0 || s.Off+s.Len > len(s.Slab.Bytes()) {
		return fmt.Errorf("twin: bytes [%d,%d) of a slab of %d", s.Off, s.Off+s.Len, len(s.Slab.Bytes()))
	}
	return nil
}

// bindLocked starts a life of a window. A new life ends the one before.
func (q *qp) bindLocked(win *window, w *work) {
	if win.cur != nil {
		q.killLocked(win.cur)
	}
	if q.dev.like != nil {
		win.cur = q.adapterLife(win, w)
		q.bound[win.cur.stag] = win.cur
		return
	}
	b := &binding{size: w.total, access: w.Access, base: rand.Uint64() >> 1}
	for b.stag == 0 || q.dev.net.stagTakenLocked(q, b.stag) {
		b.stag = rand.Uint32()
	}
	win.cur = b
	q.bound[b.stag] = b
}

func (n *Network) stagTakenLocked(q *qp, stag uint32) bool {
	if q.bound[stag] != nil {
		return true
	}
	for o := range q.dev.qps { // an STag of another queue pair must mean nothing here, so it is never the same
		if o.bound[stag] != nil {
			return true
		}
	}
	return false
}

func (q *qp) killLocked(b *binding) {
	b.dead = true
	if q.bound[b.stag] == b { // a dead STag may have come to another life since
		delete(q.bound, b.stag)
	}
}

func (q *qp) Poll(wc []transport.WC) (int, error) {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	q.engineLocked()
	if len(q.cq) == 0 {
		return 0, q.err
	}
	n := copy(wc, q.cq)
	for _, c := range wc[:n] {
		if c.Op == transport.OpRecv {
			q.nrecv--
		} else if q.dev.like != nil {
			q.nsend -= q.places[0]
			q.places = q.places[1:]
		} else {
			q.nsend--
		}
	}
	q.cq = slices.Delete(q.cq, 0, n)
	q.dev.polled += uint64(n)
	return n, nil
}

func (q *qp) Wait(ctx context.Context) error {
	for {
		q.dev.net.mu.Lock()
		q.engineLocked()
		ready := len(q.cq) > 0 || q.err != nil
		q.dev.net.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (q *qp) Close(r transport.Reason) error {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	q.closeLocked(r)
	return nil
}

// Abort cuts the link as a pulled plug does: no Terminate, and what is on the link is lost. Tests and Faulty find it
// by type assertion.
func (q *qp) Abort() {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	err := fmt.Errorf("twin: the link was cut: %w", transport.ErrClosed)
	if p := q.peer; p != nil && p.err == nil {
		p.inbox = append(p.inbox[:0], frame{kind: frameFin, err: err})
		wake(p.wake)
	}
	q.failLocked(err)
}

func (q *qp) closeLocked(r transport.Reason) {
	if q.err != nil {
		return
	}
	var term *transport.TerminateError
	switch {
	case r.Err == nil:
		q.tellLocked(frame{kind: frameFin, err: transport.ErrClosed})
		q.failLocked(transport.ErrClosed)
		return
	case !errors.As(r.Err, &term):
		// RFC 5040 section 4.8: what the upper layer found has no code of its own but "unspecified".
		term = &transport.TerminateError{Layer: transport.LayerRDMAP, Type: 2, Code: 0xff,
			Clause: "RFC 5040 section 4.8", Detail: r.Err.Error()}
	}
	q.terminateLocked(term)
}

// terminateLocked ends the connection with a Terminate to the peer.
func (q *qp) terminateLocked(term *transport.TerminateError) {
	if q.err != nil {
		return
	}
	theirs, ours := q.dev.told(term)
	q.tellLocked(theirs)
	q.failLocked(ours)
}

// tellLocked puts a last frame on the link, whether it has room or not.
func (q *qp) tellLocked(f frame) {
	if p := q.peer; p != nil && p.err == nil {
		p.inbox = append(p.inbox, f)
		wake(p.wake)
	}
}

// failLocked ends this side: all outstanding work completes with err, and nothing is placed from here on.
func (q *qp) failLocked(err error) {
	if q.err != nil {
		return
	}
	q.err = err
	left := slices.Concat(q.reads, q.sendq)
	if q.dev.like != nil {
		left = q.order // what is done behind what is not is flushed with it
	}
	for _, w := range left {
		q.cq = append(q.cq, transport.WC{Token: w.Token, Op: w.Op, Err: err})
		if q.dev.like != nil {
			q.places = append(q.places, 1+q.lag)
			q.lag = 0
		}
	}
	q.order = nil
	for _, r := range q.recvs {
		q.cq = append(q.cq, transport.WC{Token: r.Token, Op: transport.OpRecv, Err: err})
	}
	for _, b := range q.bound {
		b.dead = true
	}
	clear(q.bound)
	q.reads, q.sendq, q.recvs, q.resps, q.inbox, q.inboxBytes = nil, nil, nil, nil, nil, 0
	delete(q.dev.qps, q)
	wake(q.wake)
}
