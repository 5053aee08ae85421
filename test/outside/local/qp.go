package local

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// qp is one queue pair. The fabric's lock guards it.
type qp struct {
	d     *device
	o     transport.QPOptions
	bell  chan struct{}
	taken bool
	peer  *qp
	depth transport.Depth
	err   error // why it is closed

	sends, receives int // places taken in the queues
	posted          []transport.WR
	reads           []transport.WR // requests sent, oldest first
	nreads          int            // of depth.Out; those in posted count too
	recvs           []transport.Recv
	cq              []transport.WC
	bound           map[uint32]*life
	inbox           []message
	ended           bool // the peer has ended the connection; the inbox comes first
}

// life is a window from one Bind to its end.
type life struct {
	stag   uint32
	base   uint64
	local  []mem.Span
	access transport.Access
	dead   bool
}

// message is what a queue pair gives its peer: a Send, a Write, a Read Request, or a Read Response.
type message struct {
	op    transport.Op // OpRecv marks a Read Response
	data  []byte
	to    transport.Remote
	size  int // of a Read
	inv   uint32
	isInv bool
}

type window struct {
	q   *qp
	now *life
}

func (w *window) Remote() transport.Remote {
	w.q.d.mu.Lock()
	defer w.q.d.mu.Unlock()
	if w.now == nil {
		return transport.Remote{}
	}
	return transport.Remote{STag: w.now.stag, Off: w.now.base}
}

func (w *window) Valid() bool {
	w.q.d.mu.Lock()
	defer w.q.d.mu.Unlock()
	return w.now != nil && !w.now.dead
}

func (q *qp) NewWindow() (transport.Window, error) { return &window{q: q}, nil }

func (q *qp) Depth() transport.Depth {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	return q.depth
}

func (q *qp) PostRecv(recvs []transport.Recv) (int, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	defer ring(q.bell) // a Send may be waiting for it
	for i, r := range recvs {
		switch err := q.d.known(r.Buf); {
		case q.err != nil:
			return i, q.err
		case err != nil:
			return i, err
		case q.receives == q.o.Recvs:
			return i, transport.ErrQueueFull
		}
		q.receives++
		q.recvs = append(q.recvs, r)
	}
	return len(recvs), nil
}

func (q *qp) Post(wrs []transport.WR) (int, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	defer q.start()
	for i, wr := range wrs {
		if err := q.check(&wr); err != nil {
			return i, err
		}
		wr.Local = slices.Clone(wr.Local) // the slice is the caller's again
		if w, ok := wr.Window.(*window); ok && wr.Op == transport.OpBind {
			q.bind(w, &wr) // in force before anything that is posted later (rule 4)
		}
		if wr.Op == transport.OpRead {
			q.nreads++
		}
		q.sends++
		q.posted = append(q.posted, wr)
	}
	return len(wrs), nil
}

// check refuses what cannot be done.
func (q *qp) check(wr *transport.WR) error {
	local := wr.Op == transport.OpBind || wr.Op == transport.OpInvalidate
	switch {
	case q.err != nil:
		return q.err
	case wr.Op < transport.OpSend || wr.Op > transport.OpInvalidate:
		return fmt.Errorf("local: unknown work request %d", wr.Op)
	case q.peer == nil && !local:
		return errors.New("local: a work request before the connection")
	case q.sends == q.o.Sends:
		return transport.ErrQueueFull
	case wr.Op == transport.OpRead && q.nreads == q.depth.Out:
		return transport.ErrTooManyReads
	case len(wr.Local) > maxSGE || wr.Op == transport.OpRead && len(wr.Local) != 1:
		return fmt.Errorf("local: %d pieces of memory; %d are the most, and a Read has one", len(wr.Local), maxSGE)
	case !local && length(wr.Local) > maxMessage:
		return fmt.Errorf("local: a message of %d bytes, %d are the most", length(wr.Local), maxMessage)
	}
	if w, ok := wr.Window.(*window); local && (!ok || w.q != q || wr.Op == transport.OpInvalidate && w.now == nil) {
		return errors.New("local: the window is another queue pair's, or was never bound")
	}
	for _, s := range wr.Local {
		if err := q.d.known(s); err != nil {
			return err
		}
	}
	return nil
}

// known refuses memory that was never registered.
func (d *device) known(s mem.Span) error {
	if s.Len != 0 && (s.Slab == nil || d.slabs[s.Slab.ID()] != s.Slab || s.Off < 0 || s.Len < 0 || s.Off+s.Len > len(s.Slab.Bytes())) {
		return errors.New("local: the memory is not registered with this device")
	}
	return nil
}

func (q *qp) bind(w *window, wr *transport.WR) {
	if w.now != nil {
		q.kill(w.now)
	}
	n := &life{base: rand.Uint64() >> 1, local: wr.Local, access: wr.Access}
	for n.stag == 0 || q.d.taken(n.stag) {
		n.stag = rand.Uint32()
	}
	w.now, q.bound[n.stag] = n, n
}

// taken reports whether some connection has the STag: that of another queue pair must mean nothing here.
func (d *device) taken(stag uint32) bool {
	for q := range d.qps {
		if q.bound[stag] != nil {
			return true
		}
	}
	return false
}

func (q *qp) kill(l *life) {
	l.dead = true
	delete(q.bound, l.stag)
}

// start begins what was posted, in order. A request with Fence waits for the Reads before it.
func (q *qp) start() {
	for q.err == nil && len(q.posted) > 0 && (q.posted[0].Flags&transport.Fence == 0 || len(q.reads) == 0) {
		wr := q.posted[0]
		q.posted = q.posted[1:]
		switch wr.Op {
		case transport.OpRead:
			q.reads = append(q.reads, wr)
			q.tell(message{op: wr.Op, to: wr.Remote, size: wr.Local[0].Len})
			continue // complete with its response
		case transport.OpSend, transport.OpSendInv, transport.OpWrite:
			q.tell(message{op: wr.Op, data: gather(wr.Local), to: wr.Remote, inv: wr.Inv, isInv: wr.Op == transport.OpSendInv})
		case transport.OpInvalidate:
			q.kill(wr.Window.(*window).now)
		}
		q.complete(wr)
	}
}

func (q *qp) tell(m message) {
	if p := q.peer; p != nil && p.err == nil {
		p.inbox = append(p.inbox, m)
		ring(p.bell)
	}
}

func (q *qp) complete(wr transport.WR) {
	if wr.Flags&transport.Signaled == 0 {
		q.sends--
		return
	}
	q.cq = append(q.cq, transport.WC{Token: wr.Token, Op: wr.Op, Len: uint32(length(wr.Local))})
	ring(q.bell)
}

func (q *qp) Poll(wc []transport.WC) (int, error) {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.run()
	n := copy(wc, q.cq)
	for _, c := range q.cq[:n] {
		if c.Op == transport.OpRecv {
			q.receives--
		} else {
			q.sends--
		}
	}
	q.cq = slices.Delete(q.cq, 0, n)
	if n == 0 {
		return 0, q.err
	}
	return n, nil
}

func (q *qp) Wait(ctx context.Context) error {
	for {
		q.d.mu.Lock()
		q.run()
		ready := len(q.cq) > 0 || q.err != nil
		q.d.mu.Unlock()
		if ready {
			return nil
		}
		select {
		case <-q.bell:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// run takes what the peer sent. Only the owner's Poll and Wait do (rule 2).
func (q *qp) run() {
	for q.err == nil && len(q.inbox) > 0 {
		m := q.inbox[0]
		if (m.op == transport.OpSend || m.op == transport.OpSendInv) && len(q.recvs) == 0 {
			break // a Send waits for its receive
		}
		q.inbox = q.inbox[1:]
		if !q.takes(m) {
			q.end()
			return
		}
	}
	if q.err == nil && q.ended {
		q.end()
	}
}

// takes performs one message and reports whether it broke no rule.
func (q *qp) takes(m message) bool {
	switch m.op {
	case transport.OpSend, transport.OpSendInv:
		r := q.recvs[0]
		if len(m.data) > r.Buf.Len {
			return false
		}
		wc := transport.WC{Token: r.Token, Op: transport.OpRecv, Len: uint32(len(m.data))}
		if m.isInv {
			l := q.bound[m.inv]
			if l == nil {
				return false
			}
			q.kill(l)
			wc.Inv = m.inv
		}
		scatter([]mem.Span{r.Buf}, m.data)
		q.recvs = q.recvs[1:]
		q.cq = append(q.cq, wc)
	case transport.OpWrite:
		to, ok := q.reach(m.to, len(m.data), transport.RemoteWrite)
		scatter(to, m.data)
		return ok
	case transport.OpRead:
		from, ok := q.reach(m.to, m.size, transport.RemoteRead)
		if ok {
			q.tell(message{op: transport.OpRecv, data: gather(from)})
		}
		return ok
	case transport.OpRecv:
		wr := q.reads[0]
		q.reads = q.reads[1:]
		q.nreads--
		scatter(wr.Local, m.data)
		q.complete(wr)
		q.start() // a Fence may have waited for it
	}
	return true
}

// reach finds n bytes of a window. Nothing is nowhere (RFC 5041 section 5.1), so no STag is looked at for it.
func (q *qp) reach(at transport.Remote, n int, right transport.Access) ([]mem.Span, bool) {
	if n == 0 {
		return nil, true
	}
	l := q.bound[at.STag]
	if l == nil || l.access&right == 0 || at.Off < l.base || at.Off-l.base > uint64(length(l.local)) || uint64(n) > uint64(length(l.local))-(at.Off-l.base) {
		return nil, false
	}
	skip := int(at.Off - l.base)
	var out []mem.Span
	for _, s := range l.local {
		if skip >= s.Len {
			skip -= s.Len
		} else if k := min(s.Len-skip, n); k > 0 {
			out = append(out, s.Cut(skip, k))
			skip, n = 0, n-k
		}
	}
	return out, true
}

func (q *qp) Close(transport.Reason) error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.end()
	return nil
}

// end returns all that is outstanding with an error (rule 6). The peer takes what was sent before, and then ends too.
func (q *qp) end() {
	if q.err != nil {
		return
	}
	q.err = transport.ErrClosed
	if q.peer != nil && q.peer.err == nil {
		q.peer.ended = true
		ring(q.peer.bell)
	}
	for _, wr := range slices.Concat(q.reads, q.posted) {
		q.cq = append(q.cq, transport.WC{Token: wr.Token, Op: wr.Op, Err: q.err})
	}
	for _, r := range q.recvs {
		q.cq = append(q.cq, transport.WC{Token: r.Token, Op: transport.OpRecv, Err: q.err})
	}
	for _, l := range q.bound {
		l.dead = true
	}
	clear(q.bound)
	q.reads, q.posted, q.recvs, q.inbox = nil, nil, nil, nil
	delete(q.d.qps, q)
	ring(q.bell)
}

// names reports whether anything outstanding names the slab.
func (q *qp) names(s *mem.Slab) bool {
	of := func(l ...mem.Span) bool { return slices.ContainsFunc(l, func(x mem.Span) bool { return x.Slab == s }) }
	for _, wr := range slices.Concat(q.reads, q.posted) {
		if of(wr.Local...) {
			return true
		}
	}
	for _, r := range q.recvs {
		if of(r.Buf) {
			return true
		}
	}
	for _, l := range q.bound {
		if of(l.local...) {
			return true
		}
	}
	return false
}

func length(l []mem.Span) (n int) {
	for _, s := range l {
		n += s.Len
	}
	return n
}

func gather(l []mem.Span) []byte {
	b := make([]byte, 0, length(l))
	for _, s := range l {
		b = append(b, s.Bytes()...)
	}
	return b
}

func scatter(l []mem.Span, b []byte) {
	for _, s := range l {
		b = b[copy(s.Bytes(), b):]
	}
}
