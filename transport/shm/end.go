package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/transport"
)

// Error types and codes of ends.
const (
	rdmapLocal      = 0 // RFC 5040 section 4.8
	rdmapProtection = 1
	rdmapOperation  = 2

	rdmapSTag        = 0x00
	rdmapBounds      = 0x01
	rdmapAccess      = 0x02
	rdmapWrap        = 0x04
	rdmapOpcode      = 0x06
	rdmapStream      = 0x07
	rdmapCannotInv   = 0x09
	rdmapUnspecified = 0xff

	ddpTagged   = 1 // RFC 5041 section 7.2
	ddpUntagged = 2

	ddpTagSTag   = 0x00
	ddpTagBounds = 0x01
	ddpTagWrap   = 0x03
	ddpNoBuffer  = 0x02
	ddpTooLong   = 0x05
)

// Errors of an end.
var (
	errPeerClosed = fmt.Errorf("%w by the peer", transport.ErrClosed)
	// ErrPeerGone is why a connection ends whose other side has said nothing of it: the kernel closed its socket.
	ErrPeerGone = fmt.Errorf("%w: %w: the process at the other end has ended, or was killed", transport.ErrClosed, transport.ErrLost)
	errNoMemory = fmt.Errorf("%w: no memory for a message that has arrived", transport.ErrClosed)
)

// violation is an error found in what the peer sent.
func violation(layer transport.Layer, typ, code uint8, clause, format string, args ...any) *transport.TerminateError {
	return &transport.TerminateError{Layer: layer, Type: typ, Code: code, Clause: clause, Detail: fmt.Sprintf(format, args...)}
}

// garbled is what a peer has done that keeps no rule of this package: RFC 5040 has a catastrophic error of the stream for it.
func garbled(format string, args ...any) *transport.TerminateError {
	return violation(transport.LayerRDMAP, rdmapOperation, rdmapStream, "RFC 5040 section 4.8", format, args...)
}

// Close ends the connection.
func (q *QP) Close(r transport.Reason) error {
	var t *transport.TerminateError
	switch {
	case r.Err == nil:
		q.fail(transport.ErrClosed, nil, r.Cut)
	case errors.As(r.Err, &t) && !t.Remote:
		q.fail(t, t, r.Cut)
	default:
		t = violation(transport.LayerRDMAP, rdmapOperation, rdmapUnspecified, "RFC 5040 section 4.8", "%v", r.Err)
		q.fail(t, t, r.Cut)
	}
	return nil
}

// fail ends the QP for the reason err; the first one counts. t, if there is one, are the last words.
func (q *QP) fail(err error, t *transport.TerminateError, cut bool) {
	q.tx.Lock()
	if q.life.dead() {
		q.tx.Unlock()
		return
	}
	q.tx.err = err
	was := q.life.up()
	if was {
		q.life.moveLocked(ended)
	} else {
		q.life.moveLocked(abandoned)
	}
	q.stags.Lock()
	q.stags.killAll()
	q.stags.Unlock()
	if was {
		q.own.say(t, cut) // before any completion lets memory be used again
	} else {
		close(q.ready)
	}
	q.tx.Unlock()
	q.pending.Store(true)
	if was {
		q.file.Close() // the owner leaves the poller, and the peer sees the end
		q.release()
	}
}

// release gives mappings back when the connection has ended and the engine is out of them: it is called by who ends it, and by the
// owner behind each use of them. The later of the two does it.
func (q *QP) release() {
	if !q.eng.TryLock() {
		return // the owner comes by
	}
	defer q.eng.Unlock()
	q.tx.Lock()
	defer q.tx.Unlock()
	if q.ownSlab == nil {
		return
	}
	unmap(q.peer.b)
	_ = q.ownSlab.Close() // unmaps what is mapped
	q.ownSlab, q.own, q.peer = nil, region{}, region{}
	q.rx.seen.dropAll()
	if q.rx.in.has { // a message that nothing has looked at
		closeAll(q.rx.in.files())
		q.rx.in.has = false
	}
	q.dev.drop(q)
}

// say writes the last words.
func (r *region) say(t *transport.TerminateError, cut bool) {
	e := closed
	w := r.b[atWords : atWords+8+maxDetail]
	clear(w)
	if t != nil {
		e = broken
		w[0], w[1], w[2], w[3] = 1, uint8(t.Layer), t.Type, t.Code
		text := t.Detail
		if t.Clause != "" {
			text += " (" + t.Clause + ")"
		}
		binary.LittleEndian.PutUint16(w[4:], uint16(copy(w[8:], text)))
	}
	if cut {
		e = cutOff
	}
	r.ended.Store(uint32(e))
}

// lastWords is why the peer has ended.
func (r *region) lastWords() error {
	var w [8 + maxDetail]byte
	switch e := ending(r.ended.Load()); e {
	case closed:
		return errPeerClosed
	case broken, cutOff:
		copy(w[:], r.b[atWords:])
	default:
		return ErrPeerGone
	}
	if w[0] == 0 {
		return errPeerClosed
	}
	n := min(int(binary.LittleEndian.Uint16(w[4:])), maxDetail)
	return &transport.TerminateError{Remote: true, Layer: transport.Layer(w[1]), Type: w[2], Code: w[3], Detail: printable(w[8 : 8+n]), Raw: append([]byte(nil), w[1:4]...)}
}
