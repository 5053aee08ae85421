package transporttest

import (
	"fmt"
	"unsafe"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Adapter makes a twin like an RDMA adapter: it has no power that InfiniBand and RoCE adapters lack. Completions come in the
// order of Post, and those of unsignaled requests free their places with a later one; private data is padded; an end
// tells no reason; a Send waits for its receive; windows are contiguous, their STags are an index and eight bits that count,
// and the bounds that hold are the slab's. All devices of a network with one of these are to be such.
type Adapter struct {
	// WholeSlab is an adapter without memory windows of type 2: what is bound is a whole slab, for as long as it is registered.
	WholeSlab bool
	// Provider is the device's name, "twin" if empty.
	Provider string
}

// Adapter returns a new device on the network that is like a.
func (n *Network) Adapter(a Adapter) transport.Device { return n.device(&a) }

// AdapterTwin returns two devices like a on a fabric of their own.
func AdapterTwin(a Adapter) (x, y transport.Device) {
	n := NewNetwork()
	return n.Adapter(a), n.Adapter(a)
}

// What librdmacm leaves an upper protocol of the connection manager's messages, bytes.
const (
	adapterRequest = 56
	adapterReply   = 196
	adapterReject  = 148

	adapterMaxSGE = 6 // siw's, the least of the kernel's drivers
)

func (a *Adapter) caps() transport.Caps {
	return transport.Caps{PerIOWindows: !a.WholeSlab, RemoteInv: true, InOrder: true, OwnResponder: true, PaddedPrivate: true,
		MaxSGE: adapterMaxSGE, MaxBindSGE: 1, MaxMessage: twinMaxMessage, MaxReads: 16, MaxPrivate: adapterRequest}
}

// padded is a copy of private data as the peer sees it.
func (d *twin) padded(b []byte, size int) []byte {
	if d.like == nil {
		return append([]byte(nil), b...)
	}
	p := make([]byte, size)
	copy(p, b)
	return p
}

// addr is where a slab lies: what an adapter calls a tagged offset.
func addr(s *mem.Slab) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(s.Bytes())))) }

// adapterLife starts a life of a window as an adapter does.
func (q *qp) adapterLife(win *window, w *work) *binding {
	l := w.WR.Local[0]
	b := &binding{size: w.total, access: w.Access, base: addr(l.Slab) + uint64(l.Off), slab: l.Slab}
	if q.dev.like.WholeSlab {
		b.stag = l.Slab.ID() << 8
		return b
	}
	if win.index == 0 {
		q.dev.windows++
		win.index = 1<<16 + q.dev.windows
	}
	win.key++
	b.stag = win.index<<8 | uint32(win.key)
	return b
}

// place is memory that a peer named.
type place struct {
	b     *binding // nil for a whole slab's
	local []mem.Span
	at    int // bytes into local
}

type refusal uint8

const (
	refuseNone refusal = iota
	refuseSTag
	refuseBounds
	refuseRight
)

// reach finds what a peer's STag and offset stand for.
func (q *qp) reach(stag uint32, off uint64, n int, need transport.Access) (place, *binding, refusal) {
	b := q.bound[stag]
	like := q.dev.like
	if like != nil && like.WholeSlab {
		s := q.dev.slabs[stag>>8]
		if s == nil || stag&0xff != 0 {
			return place{}, nil, refuseSTag
		}
		b = &binding{access: transport.RemoteRead | transport.RemoteWrite, slab: s}
	}
	if b == nil {
		return place{}, nil, refuseSTag
	}
	if like == nil {
		switch {
		case !b.holds(off, n):
			return place{}, b, refuseBounds
		case b.access&need == 0:
			return place{}, b, refuseRight
		}
		return place{b: b, local: b.local, at: int(off - b.base)}, b, refuseNone
	}
	size := len(b.slab.Bytes())
	base := addr(b.slab)
	switch {
	case off < base || off-base > uint64(size) || uint64(n) > uint64(size)-(off-base):
		return place{}, b, refuseBounds
	case b.access&need == 0:
		return place{}, b, refuseRight
	}
	p := place{b: b, local: []mem.Span{{Slab: b.slab, Off: int(off - base), Len: n}}}
	if like.WholeSlab {
		p.b = nil
	}
	return p, b, refuseNone
}

// inOrderLocked lets go of completions in the order of Post.
func (q *qp) inOrderLocked() {
	for len(q.order) > 0 && q.order[0].done {
		w := q.order[0]
		q.order[0] = nil
		q.order = q.order[1:]
		q.lag++
		if w.Flags&transport.Signaled == 0 {
			continue
		}
		q.cq = append(q.cq, transport.WC{Token: w.Token, Op: w.Op, Len: uint32(w.total)})
		q.places = append(q.places, q.lag)
		q.lag = 0
		wake(q.wake)
	}
}

// namesLocked reports whether work of q that is outstanding, or a window of its, names a slab.
func (q *qp) namesLocked(s *mem.Slab) bool {
	in := func(l []mem.Span) bool {
		for _, sp := range l {
			if sp.Slab == s && sp.Len > 0 {
				return true
			}
		}
		return false
	}
	for _, l := range [][]*work{q.sendq, q.reads} {
		for _, w := range l {
			if in(w.local) {
				return true
			}
		}
	}
	for _, r := range q.recvs {
		if in([]mem.Span{r.Buf}) {
			return true
		}
	}
	for _, b := range q.bound {
		if in(b.local) {
			return true
		}
	}
	return false
}

// HoldReads makes this end answer no RDMA Read until it is called with false. What arrives otherwise is taken as ever. Tests
// find it by type assertion.
func (q *qp) HoldReads(hold bool) {
	q.dev.net.mu.Lock()
	defer q.dev.net.mu.Unlock()
	q.holdReads = hold
	q.pumpLocked()
}

// Path is how a connection goes, as an adapter's would say.
func (q *qp) Path() transport.Path {
	p := transport.Path{Provider: q.dev.Name(), Exposure: "the bytes of each I/O, while it lasts"}
	if a := q.dev.like; a != nil {
		p.Device, p.Port, p.GID, p.Exposure = "twin0", 1, "::ffff:192.0.2.1", "a window for each I/O"
		if a.WholeSlab {
			p.Exposure = "all registered memory"
		}
	}
	return p
}

// told is what an end tells the peer of its reason.
func (d *twin) told(term *transport.TerminateError) (theirs frame, ours error) {
	if d.like != nil {
		return frame{kind: frameFin, err: fmt.Errorf("twin: the peer's adapter gave up: %w", transport.ErrClosed)},
			fmt.Errorf("twin: %s: %w", term.Detail, transport.ErrClosed)
	}
	t := *term
	t.Remote, t.Detail = true, ""
	return frame{kind: frameTerminate, err: &t}, fmt.Errorf("%w: %w", transport.ErrClosed, term)
}

// Adapters is the one adapter that a twin like one has.
func (d *twin) Adapters() []transport.AdapterInfo {
	if d.like == nil {
		return nil
	}
	i := transport.AdapterInfo{Name: "twin0", Connections: d.Gauges().Connections, WholeSlabs: d.like.WholeSlab}
	d.net.mu.Lock()
	defer d.net.mu.Unlock()
	for _, s := range d.slabs {
		i.Registered += int64(len(s.Bytes()))
	}
	if i.Completions = d.polled; d.like.WholeSlab {
		i.Exposed = i.Registered
	}
	return []transport.AdapterInfo{i}
}
