package block

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/mem"
)

const (
	aheadSize  = 64 << 10 // the look-ahead buffer: one control PDU, and headers behind it
	maxControl = 16 << 10 // data of a PDU that is not Data-In
	arenaSize  = 64 << 10
	pduRoom    = 64 // arena of one Data-Out: header, digests, padding
)

// tcpConn is a datamover and a wire over a byte stream. The owner goroutine reads; a second one writes, so that receiving
// never waits for the target to read.
type tcpConn struct {
	conn   net.Conn
	in     *sockio.Reader // nil: no readv
	out    *sockio.Writer // nil likewise
	bufs   []*mem.Buf
	kept   *kept // what they go to
	slots  []mem.Span
	hdrDig bool
	datDig bool
	maxTx  int // the target's MaxRecvDataSegmentLength
	imm    int

	ahead  []byte
	lo, hi int
	iov    [][]byte
	inVec  []unix.Iovec // iov for the call

	mu     sync.Mutex
	wake   chan struct{}
	txq    []txItem
	closed bool

	arena  []byte
	vec    [][]byte
	nb     net.Buffers
	outVec []unix.Iovec // vec for the call
	spare  []txItem
}

// txItem is something to be sent: a command, a burst of Data-Out, or bytes.
type txItem struct {
	t         *task // command or Data-Out
	raw       []byte
	burst     bool
	hlen      int // command: header and additional headers
	ttt       uint32
	expStatSN uint32
	off, n    int
	dataSN    uint32
}

func (i *Initiator) dialTCP(ctx context.Context, u *URL, k *kept, depth int) (*tcpConn, error) {
	conn, err := i.o.DialTCP(ctx, "tcp", u.Addr())
	if err != nil {
		return nil, &ConnectError{u.Addr(), err}
	}
	c := &tcpConn{conn: conn, ahead: make([]byte, aheadSize), arena: make([]byte, 0, arenaSize), wake: make(chan struct{}, 1)}
	if raw := sockio.Raw(conn); raw != nil {
		c.in, c.out = sockio.NewReader(raw), sockio.NewWriter(raw)
	}
	m := carver{i: i, k: k, had: k.take(), left: depth * lines(slotSize)}
	c.slots, err = m.cut(ctx, depth, slotSize)
	if err = m.done(err); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c.kept, c.bufs = k, m.bufs
	return c, nil
}

func (c *tcpConn) release() {
	c.kept.put(c.bufs)
	c.bufs = nil
}

// close ends the connection. After anything but a logout what the kernel still holds is dropped: it would go on trying for minutes, and
// commands that arrive when the network heals would land on what another path has written since.
func (c *tcpConn) close(err error) {
	if l, ok := c.conn.(interface{ SetLinger(sec int) error }); ok && cut(err) {
		_ = l.SetLinger(0) // fails on a connection that is closed already
	}
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.ring()
	_ = c.conn.Close() // the reader reports the end
}

func (c *tcpConn) ring() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *tcpConn) maxSGE() int    { return 64 }
func (c *tcpConn) prepare() error { return nil }

// exchange is one step of login or of a text negotiation.
func (c *tcpConn) exchange(ctx context.Context, h iscsi.BHS, data []byte) (iscsi.BHS, []byte, error) {
	// The context alone ends the wait, so that its cause is what the caller is told.
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	pdu := append(append(append([]byte(nil), h...), data...), make([]byte, iscsi.Pad(len(data)))...)
	if _, err := c.conn.Write(pdu); err != nil {
		return nil, nil, ctxErr(ctx, err)
	}
	if err := c.need(iscsi.BHSLen); err != nil {
		return nil, nil, ctxErr(ctx, err)
	}
	b := iscsi.BHS(c.ahead[c.lo:])
	n := b.AHSLen() + b.DataLen()
	if n > maxControl {
		return nil, nil, &iscsi.ProtocolError{Clause: "13.12", Detail: fmt.Sprintf("%d bytes after the header of a login or text response", n)}
	}
	ahs, dlen := b.AHSLen(), b.DataLen()
	total := iscsi.BHSLen + n + iscsi.Pad(dlen)
	if err := c.need(total); err != nil {
		return nil, nil, ctxErr(ctx, err)
	}
	got := append([]byte(nil), c.ahead[c.lo:c.lo+total]...)
	c.lo += total
	return got[:iscsi.BHSLen:iscsi.BHSLen], got[iscsi.BHSLen+ahs : iscsi.BHSLen+ahs+dlen], nil
}

func ctxErr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the target closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func (c *tcpConn) attach(s *session, noImm bool) error {
	if err := c.conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	c.hdrDig, c.datDig, c.maxTx = s.params.HeaderDigest, s.params.DataDigest, s.params.MaxSend
	if s.params.ImmediateData && !noImm {
		c.imm = min(s.params.FirstBurst, c.maxTx)
	}
	return nil
}

// send queues the commands of new tasks with their immediate data.
func (c *tcpConn) send(s *session, batch []*task) error {
	c.mu.Lock()
	for _, t := range batch {
		if t.out {
			t.imm = int(min(t.edtl, int64(c.imm)))
		}
		b := t.slot.Bytes()
		n := t.command(b, s.lun, s.statSN, t.imm)
		if c.hdrDig {
			iscsi.PutDigest(b[n:], iscsi.Digest(b[:n]))
			n += iscsi.DigestLen
		}
		t.queued = 1
		c.txq = append(c.txq, txItem{t: t, hlen: n, n: t.imm})
	}
	c.mu.Unlock()
	c.ring()
	return nil
}

func (c *tcpConn) control(b iscsi.BHS, data []byte) error {
	pdu := append([]byte(nil), b...)
	if c.hdrDig {
		pdu = append(pdu, 0, 0, 0, 0)
		iscsi.PutDigest(pdu[iscsi.BHSLen:], iscsi.Digest(pdu[:iscsi.BHSLen]))
	}
	if len(data) > 0 {
		from := len(pdu)
		pdu = append(append(pdu, data...), make([]byte, iscsi.Pad(len(data)))...)
		if c.datDig {
			d := iscsi.Digest(pdu[from:])
			pdu = append(pdu, 0, 0, 0, 0)
			iscsi.PutDigest(pdu[len(pdu)-iscsi.DigestLen:], d)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Pings are one at a time and aborts one for each task: more means that the target does not read.
	if len(c.txq) > 4*MaxDepth {
		return errors.New("block: too many PDUs wait to be sent")
	}
	c.txq = append(c.txq, txItem{raw: pdu})
	c.ring()
	return nil
}
