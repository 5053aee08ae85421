package iscsi

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
)

// tcpDatamover is the TCP datamover: RFC 7143 as it is written. The owner reads (tcp_rx.go, tcp_data.go). A goroutine
// that queues output writes it, one at a time, and a full socket hands the rest to the one writer goroutine
// (tcp_tx.go). The owner waits for neither.
type tcpDatamover struct {
	c   *conn
	nc  net.Conn
	raw syscall.RawConn // nil where nc is not a socket: then only the writer goroutine writes

	once sync.Once

	// Receive state, the owner's.
	lent   *[lookAhead]byte
	buf    []byte // look-ahead, all of lent, nil while idle
	r, w   int
	header [iscsi.BHSLen]byte
	ahs    [1024]byte
	bulk   bool // PDUs carry much data at present: read no further than the next header
	want   int  // a fill for so many bytes is under way
	corked bool
	riov   []unix.Iovec
	rn     int
	rerr   error
	readFn func(uintptr) bool

	// Guarded by c.mu.
	full           bool // full-feature phase: digests as negotiated
	hd, dd         bool
	q              []seg
	head, off      int
	queued         int // bytes
	write          writeState
	started        bool // the writer goroutine runs
	closeWhenEmpty bool
	blocks         *block
	idle           sync.Cond // write has become writeNone
	wake           chan struct{}

	// The flusher's.
	wiov []unix.Iovec
	done []*task
	sock *sockio.Writer // nil without raw
}

func newTCPDatamover(c *conn, nc net.Conn) *tcpDatamover {
	x := &tcpDatamover{c: c, nc: nc, wake: make(chan struct{}, 1)}
	x.idle.L = &c.mu
	if raw := sockio.Raw(nc); raw != nil {
		x.raw, x.sock = raw, sockio.NewWriter(raw)
	}
	x.readFn = x.tryRead
	if x.raw != nil {
		// A peer that vanished is noticed by the kernel too, while data is on its way to it (RFC 5482).
		ms := int(c.srv.opt.Timeouts.Peer / time.Millisecond)
		_ = x.raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, ms)
		})
	}
	return x
}

// run is the owner.
func (x *tcpDatamover) run() {
	c := x.c
	rdma, err := x.first()
	if rdma {
		x.handOver(append([]byte(nil), x.buf[x.r:x.w]...))
		return
	}
	if err == nil {
		err = x.loop()
	}
	c.mu.Lock()
	c.corked = false
	c.mu.Unlock()
	x.close(err)
	x.giveBuf()
	c.mu.Lock()
	for x.write != writeNone {
		x.idle.Wait()
	}
	x.q, x.head, x.off = nil, 0, 0
	c.mu.Unlock()
	c.finish(err)
}

// first waits for the connection's first bytes and reports whether they begin an MPA Request. No iSCSI login begins so: its first byte is 43h.
func (x *tcpDatamover) first() (rdma bool, err error) {
	defer x.c.guard(&err)
	if err := x.fill(1); err != nil {
		return false, err
	}
	return x.buf[x.r] == 'M' && x.c.srv.opt.Device != nil, nil
}

func (x *tcpDatamover) loop() (err error) {
	defer x.c.guard(&err)
	for {
		if err := x.pdu(); err != nil {
			x.lastWords(err)
			return err
		}
	}
}

// lastWords rejects the PDU that broke a rule, before the connection ends for it (RFC 7143 sections 7.7 and 7.10).
func (x *tcpDatamover) lastWords(err error) {
	var pe *iscsi.ProtocolError
	if !errors.As(err, &pe) {
		return
	}
	c := x.c
	c.mu.Lock()
	if c.state == stateFull {
		c.rejectLocked(x.header[:], pe.Reason)
	}
	if c.killErr == nil {
		c.killErr = err
	}
	c.corked = false
	x.flushLocked()
	c.mu.Unlock()
}

func (x *tcpDatamover) maxSend() int {
	if !x.full {
		return iscsi.DefaultRecvData
	}
	return x.c.params.MaxSend
}

func (x *tcpDatamover) widen() error { return nil }

func (x *tcpDatamover) fullFeatureLocked() error {
	x.full, x.hd, x.dd = true, x.c.params.HeaderDigest, x.c.params.DataDigest
	return nil
}

func (x *tcpDatamover) windowLocked(n int) int { return n }

func (x *tcpDatamover) idleLocked() {
	if x.head == len(x.q) && x.write == writeNone {
		x.q, x.head, x.blocks, x.wiov, x.done = nil, 0, nil, nil, nil
	}
}

func (x *tcpDatamover) close(error) {
	x.once.Do(func() { _ = x.nc.Close() })
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

func (x *tcpDatamover) closeAfterFlushLocked() {
	x.closeWhenEmpty = true
	if x.head == len(x.q) && x.write == writeNone {
		x.shut()
	}
}

// shut ends our half of the stream and leaves the initiator a moment for its own, so that the last response is not lost
// to a reset.
func (x *tcpDatamover) shut() {
	hc, ok := x.nc.(interface{ CloseWrite() error })
	if !ok || hc.CloseWrite() != nil {
		go x.close(nil)
		return
	}
	t := time.AfterFunc(time.Second, func() { x.close(nil) })
	context.AfterFunc(x.c.ctx, func() { t.Stop() })
}

// cancelLocked has nothing in flight to wait for, unless the owner is receiving at this moment.
func (x *tcpDatamover) cancelLocked(t *task) bool { return t.move != movePlacingCancelled }

// solicitLocked sends the next R2T of a task (section 11.8).
func (x *tcpDatamover) solicitLocked(t *task) {
	o := &t.out
	if t.move != moveOut || o.sequence != sequenceNone || o.have == o.n || o.err != nil {
		return
	}
	pos := o.off + o.have
	n := min(o.n-o.have, x.c.params.MaxBurst)
	taskSequence.Move(&o.sequence, sequenceR2T)
	o.r2tPos, o.r2tEnd, o.dataSN = pos, pos+n, 0
	p := iscsi.R2T{LUN: t.lun, ITT: t.itt, TTT: t.ttt(), R2TSN: o.r2tSN, Offset: uint32(pos), Length: uint32(n)}
	o.r2tSN++
	if n > copyBelow {
		o.r2tBulk = true
		x.c.bulkOut.Add(1)
	}
	blk := x.blockLocked()
	p.Put(blk.header())
	x.c.numbersLocked(blk.header(), false)
	x.pushLocked(blk, 0, nil, nil)
}

func (x *tcpDatamover) respondLocked(t *task) {
	var r iscsi.SCSIResponse
	t.responseLocked(&r)
	blk := x.blockLocked()
	blk.status = true
	x.c.countResponseLocked()
	r.Put(blk.header())
	x.c.numbersLocked(blk.header(), true)
	if r.DataLen > 0 {
		d := blk.data()
		d[0], d[1] = byte(len(t.Sense)>>8), byte(len(t.Sense))
		copy(d[2:], t.Sense)
	}
	x.pushLocked(blk, r.DataLen, nil, nil)
}

func (x *tcpDatamover) sendLocked(h iscsi.BHS, data []byte) {
	blk := x.blockLocked()
	blk.control = true
	copy(blk.header(), h[:iscsi.BHSLen])
	if len(data) <= blockData {
		copy(blk.data(), data)
		x.pushLocked(blk, len(data), nil, nil)
		return
	}
	x.pushLocked(blk, 0, data, nil)
}

func isTooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

func closedByPeer(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return errPeerClosed
	}
	return err
}
