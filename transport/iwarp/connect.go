package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime/debug"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

var (
	errForeignQP = errors.New("iwarp: the queue pair is not one of this device")
	errUsedQP    = errors.New("iwarp: the queue pair has been used for a connection already")
	errAnswered  = errors.New("iwarp: the connection request has been answered already")
)

// negotiated is what two MPA frames settled.
type negotiated struct {
	responder bool
	crc       bool
	markers   bool // the peer wants them
	big       bool
	mss       int
	depth     transport.Depth
	rtrIn     rtr // what the peer sends first
	rtrOut    rtr // what we send first
}

// sameHost tells whether the path has no wire.
func sameHost(c net.Conn) bool {
	l, lok := c.LocalAddr().(*net.TCPAddr)
	r, rok := c.RemoteAddr().(*net.TCPAddr)
	if !lok || !rok {
		return true // a socket pair
	}
	return r.IP.IsLoopback() || l.IP.Equal(r.IP) && l.Zone == r.Zone
}

func (o *Options) wantCRC(local bool) bool { return o.CRC == CRCOn || o.CRC == CRCAuto && !local }

func (o *Options) bigFPDUs(local, hint, crc bool) bool {
	switch o.FPDU {
	case FPDUBig:
		return true
	case FPDUSegment:
		return false
	}
	return local || hint && !crc
}

// capReads bounds a depth asked for by our upper protocol.
func capReads(n int) int { return min(max(n, 0), maxReads) }

// guard makes ctx and a time limit end the blocking use of c in a connection set-up. The result is called when it is over.
func guard(ctx context.Context, c net.Conn, limit time.Duration) (release func()) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return func() {}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	return func() { stop() }
}

// defective makes a panic in the set-up of a connection that set-up's error.
func defective(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("iwarp: a defect here in the set-up of a connection: %v\n%s", p, debug.Stack())
	}
}

func ctxErr(ctx context.Context, err error) error {
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	return err
}

// readFrame reads an MPA frame, not one byte more: what follows is the first FPDU.
func readFrame(r io.Reader, reply bool) (mpaFrame, error) {
	var f mpaFrame
	b := make([]byte, mpaHdrLen)
	if _, err := io.ReadFull(r, b); err != nil {
		return f, fmt.Errorf("iwarp: no MPA frame from the peer; is an RDMA service there? %w", err)
	}
	n, err := parseMPAHeader(b, reply, &f)
	if err != nil {
		return f, err
	}
	pd := make([]byte, n)
	if _, err := io.ReadFull(r, pd); err != nil {
		return f, fmt.Errorf("iwarp: the peer's MPA frame ends early: %w", err)
	}
	f.parsePrivate(pd)
	return f, nil
}

func peerOf(c net.Conn, f *mpaFrame) transport.Peer {
	p := transport.Peer{Private: f.Private, Named: f.Enhanced, Local: c.LocalAddr(), Remote: c.RemoteAddr()}
	if f.Enhanced {
		p.ReadsIn, p.ReadsOut = int(f.IRD), int(f.ORD)
	}
	return p
}

func (d *Device) dial(ctx context.Context, addr string, q *QP, p transport.ConnParams) (transport.Peer, error) {
	if d.isClosed() {
		return transport.Peer{}, transport.ErrClosed
	}
	if len(p.Private) > maxPrivate {
		return transport.Peer{}, fmt.Errorf("iwarp: %d bytes of private data, at most %d are sent", len(p.Private), maxPrivate)
	}
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "tcp", addr)
	if err != nil {
		return transport.Peer{}, fmt.Errorf("iwarp: connect: %w", err)
	}
	peer, err := d.initiate(ctx, c.(*net.TCPConn), q, p)
	if cerr := c.Close(); err == nil && cerr != nil { // the QP has a descriptor of its own by now
		err = cerr
	}
	return peer, err
}

// initiate is the initiator's half of RFC 5044 section 7.1 and RFC 6581 section 9.
func (d *Device) initiate(ctx context.Context, c *net.TCPConn, q *QP, p transport.ConnParams) (_ transport.Peer, err error) {
	defer defective(&err)
	o := &d.opt
	local := sameHost(c)
	req := mpaFrame{Revision: uint8(o.Revision), CRC: o.wantCRC(local), GSO: true, Private: p.Private}
	if o.Revision == 2 {
		req.Enhanced = true
		req.IRD, req.ORD = uint16(capReads(p.ReadsIn)), uint16(capReads(p.ReadsOut))
		if o.PeerToPeer {
			req.P2P, req.RTR = true, o.rtr
			if o.rtr == rtrRead {
				req.ORD = max(req.ORD, 1)
			}
		}
	}
	release := guard(ctx, c, o.ReplyTimeout)
	defer release()
	if _, err := c.Write(req.append(nil)); err != nil {
		return transport.Peer{}, ctxErr(ctx, fmt.Errorf("iwarp: send the MPA Request: %w", err))
	}
	rep, err := readFrame(c, true)
	if err != nil {
		return transport.Peer{}, ctxErr(ctx, err)
	}
	peer := peerOf(c, &rep)
	switch {
	case rep.Reject:
		return peer, &transport.RejectedError{Private: rep.Private}
	case rep.Revision > req.Revision || req.Enhanced != rep.Enhanced:
		return peer, fmt.Errorf("iwarp: the MPA Reply is of revision %d, enhanced %t; the Request was of revision %d, enhanced %t (RFC 6581 section 10)",
			rep.Revision, rep.Enhanced, req.Revision, req.Enhanced)
	case o.CRC == CRCOff && rep.CRC:
		return peer, errors.New("iwarp: the peer demands CRC, which is switched off here (RFC 5044 section 7.1.1)")
	}
	n := negotiated{crc: req.CRC || rep.CRC, markers: rep.Markers}
	n.big = o.bigFPDUs(local, rep.GSO, n.crc)
	n.depth = transport.Depth{In: capReads(p.ReadsIn), Out: capReads(p.ReadsOut)}
	var term *transport.TerminateError
	if rep.Enhanced {
		if rep.IRD != maxReads14 {
			n.depth.Out = min(n.depth.Out, int(rep.IRD))
		}
		if rep.ORD != maxReads14 && int(rep.ORD) > n.depth.In {
			// RFC 6581 section 9.1: at least the responder's ORD, or Terminate.
			if n.depth.In = int(rep.ORD); n.depth.In > maxReads {
				term = violation(transport.LayerLLP, 0, llpIRD, "RFC 6581 section 9.1", "the peer wants %d Reads outstanding, at most %d can be served", rep.ORD, maxReads)
			}
		}
		if req.P2P {
			both := req.RTR & rep.RTR
			switch {
			case !rep.P2P, both == 0:
				term = violation(transport.LayerLLP, 0, llpRTR, "RFC 6581 section 9.2", "the peer takes none of the ready-to-receive types offered")
			case both&rtrWrite != 0:
				n.rtrOut = rtrWrite
			case both&rtrRead != 0:
				n.rtrOut = rtrRead
			default:
				n.rtrOut = rtrSend
			}
		}
	}
	if term != nil {
		_, _ = c.Write(terminateFPDU(term, nil, n.crc)) // best effort
		return peer, term
	}
	release()
	return peer, q.take(c, n)
}

// request is one MPA Request that waits for its answer.
type request struct {
	d    *Device
	c    *net.TCPConn
	f    mpaFrame
	done bool
}

// Peer is what the request said.
func (r *request) Peer() transport.Peer { return peerOf(r.c, &r.f) }

// Reject answers with the R bit.
func (r *request) Reject(private []byte) error {
	if r.done {
		return errAnswered
	}
	r.done = true
	defer func() { _ = r.c.Close() }() // the write's error says more
	if len(private) > maxPrivate {
		return fmt.Errorf("iwarp: %d bytes of private data, at most %d are sent", len(private), maxPrivate)
	}
	rep := mpaFrame{Reply: true, Reject: true, Revision: r.f.Revision, Enhanced: r.f.Enhanced, Private: private}
	if err := r.c.SetDeadline(time.Now().Add(r.d.opt.ReplyTimeout)); err != nil {
		return err
	}
	if _, err := r.c.Write(rep.append(nil)); err != nil {
		return err
	}
	return r.c.CloseWrite()
}

// Accept answers and connects tq.
func (r *request) Accept(ctx context.Context, tq transport.QP, p transport.ConnParams) error {
	if r.done {
		return errAnswered
	}
	r.done = true
	q, err := r.d.claim(tq)
	if err == nil {
		if err = r.accept(ctx, q, p); err != nil {
			q.fail(lost(err), nil, nil)
		}
	}
	if cerr := r.c.Close(); err == nil && cerr != nil {
		err = cerr
	}
	return err
}

// accept is the responder's half of RFC 5044 section 7.1 and RFC 6581 section 9.
func (r *request) accept(ctx context.Context, q *QP, p transport.ConnParams) (err error) {
	defer defective(&err)
	o, f := &r.d.opt, &r.f
	if len(p.Private) > maxPrivate {
		return fmt.Errorf("iwarp: %d bytes of private data, at most %d are sent", len(p.Private), maxPrivate)
	}
	local := sameHost(r.c)
	if o.CRC == CRCOff && f.CRC {
		rej := mpaFrame{Reply: true, Reject: true, Revision: f.Revision, Enhanced: f.Enhanced}
		_, _ = r.c.Write(rej.append(nil)) // best effort: the error below is what counts
		return errors.New("iwarp: the peer demands CRC, which is switched off here (RFC 5044 section 7.1.1)")
	}
	// RFC 5044 section 7.1.1: either side's C bit is enough, and saying so in the reply tells the peer that we know.
	rep := mpaFrame{Reply: true, CRC: f.CRC || o.wantCRC(local), GSO: true, Revision: f.Revision, Enhanced: f.Enhanced, Private: p.Private}
	n := negotiated{responder: true, crc: rep.CRC, markers: f.Markers}
	n.big = o.bigFPDUs(local, f.GSO, n.crc)
	n.depth = transport.Depth{In: capReads(p.ReadsIn), Out: capReads(p.ReadsOut)}
	if f.Enhanced {
		if rep.IRD = maxReads14; f.ORD != maxReads14 {
			n.depth.In = min(n.depth.In, int(f.ORD))
			rep.IRD = uint16(n.depth.In)
		}
		if rep.ORD = maxReads14; f.IRD != maxReads14 {
			n.depth.Out = min(n.depth.Out, int(f.IRD))
			rep.ORD = uint16(n.depth.Out)
		}
		if f.P2P {
			rep.P2P = true
			// RFC 6581 section 9.2, interop: name one of those offered, Write before Read before Send; when none of
			// them is ours, name ours, and the initiator terminates.
			for _, t := range [...]rtr{rtrWrite, rtrRead, rtrSend} {
				if f.RTR&o.rtr&t != 0 {
					rep.RTR, n.rtrIn = t, t
					break
				}
			}
			if rep.RTR == 0 {
				rep.RTR = o.rtr
			}
			if rep.RTR == rtrRead && n.depth.In == 0 {
				n.depth.In, rep.IRD = 1, 1 // RFC 6581 section 9.1
			}
		}
	}
	// The initiator may send as soon as it has the reply; nothing of ours follows it before (RFC 5044 section 7.1.3).
	release := guard(ctx, r.c, o.ReplyTimeout)
	defer release()
	if _, err := r.c.Write(rep.append(nil)); err != nil {
		return ctxErr(ctx, fmt.Errorf("iwarp: send the MPA Reply: %w", err))
	}
	return q.take(r.c, n)
}

// take makes q a connection over a descriptor of its own for c's socket.
func (q *QP) take(c *net.TCPConn, n negotiated) error {
	if err := c.SetNoDelay(true); err != nil {
		return err
	}
	file, err := c.File()
	if err != nil {
		return err
	}
	rc, err := file.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) { n.mss = sendMSS(int(fd), minMSS) })
	}
	if err == nil {
		err = q.start(file, n)
	}
	if err != nil {
		_ = file.Close() // the error above says more
		return err
	}
	if !n.responder {
		q.nudge()
	}
	return q.sendRTR(n.rtrOut)
}

// sendRTR sends the zero-length frame of the peer-to-peer mode.
func (q *QP) sendRTR(t rtr) error {
	if t == 0 {
		return nil
	}
	tx := &q.tx
	tx.Lock()
	defer tx.Unlock()
	switch t {
	case rtrWrite:
		tx.ownLocked(transport.OpWrite)
	case rtrSend:
		tx.ownLocked(transport.OpSend)
	case rtrRead:
		q.addRead(tx.ownLocked(transport.OpRead), true)
	}
	tx.pumpLocked(false)
	return nil
}
