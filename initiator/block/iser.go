package block

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/owner"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

const iserHead = iscsi.ISERHeaderLen + iscsi.BHSLen

// Kinds of work request tokens; the index is in the low half.
const (
	tokRecv uint64 = iota << 32
	tokLoginRecv
	tokSend
	tokControl
	tokInvalidate
	tokKind uint64 = 0xffffffff << 32
)

// sendSignal is how often a command's Send is signaled, so that a provider can tell that the queue drains.
const sendSignal = 16

// iserConn is a datamover and a wire over a queue pair.
type iserConn struct {
	qp      transport.QP
	poll    owner.Poller // of qp, the owner's
	sge     int          // of a Send, beside the header
	bind    int          // of a window
	sendInv bool         // the target may invalidate our STags
	imm     int          // the longest immediate data, set after login
	bufs    []*mem.Buf
	kept    *kept // what they go to
	logTx   mem.Span
	logRx   mem.Span
	ring    []mem.Span
	slots   []mem.Span
	ctl     []mem.Span
	ctlFree []int
	wins    []transport.Window
	wrs     []transport.WR
	recvs   []transport.Recv
	sends   uint64                // posted
	counter transport.SendCounter // nil: Sends with immediate data are signaled
	late    []*task               // answered before the fabric has let go of their immediate data
	asked   bool                  // a Send is under way whose completion tells of theirs
}

// dialISER connects a queue pair and gives it the memory of a session.
func (i *Initiator) dialISER(ctx context.Context, u *URL, k *kept, depth int, discovery bool) (*iserConn, error) {
	dev, err := i.device(u)
	if err != nil {
		return nil, err
	}
	caps := dev.Caps()
	c := &iserConn{sge: max(caps.MaxSGE-1, 1), bind: caps.MaxBindSGE}
	nring := depth + unexpected + controls
	if discovery {
		nring = 0 // one PDU at a time, in the login buffers
	}
	if err := c.memory(ctx, i, k, depth, nring); err != nil {
		return nil, err
	}
	// A command takes a Bind, a Send and perhaps an Invalidate. Beside those under way there are the places of commands that are
	// over and whose Sends were not signaled: they come back with a signaled Send's (transport, rule 7), which may be as
	// many commands late.
	qp, err := dev.NewQP(transport.QPOptions{Sends: 3*depth + 2*2*sendSignal + controls + 8, Recvs: nring + 2})
	if err != nil {
		c.release()
		return nil, err
	}
	c.qp, c.poll.QP = qp, qp
	c.counter, _ = qp.(transport.SendCounter)
	c.wrs = make([]transport.WR, 0, 2*depth+controls)
	c.recvs = make([]transport.Recv, 0, nring)
	fail := func(err error) (*iserConn, error) {
		c.drain(err)
		c.release()
		return nil, err
	}
	if err := c.postLogin(); err != nil {
		return fail(err)
	}
	reads := min(max(caps.MaxReads, 1), depth)
	// A target that ended an STag which stands for a whole slab would end all that is under way.
	inv := caps.RemoteInv && caps.PerIOWindows
	peer, err := dev.Dial(ctx, u.at(), qp, transport.ConnParams{Private: iscsi.CMPrivate(inv), ReadsIn: reads, ReadsOut: 1})
	if err != nil {
		return fail(&ConnectError{u.at(), err})
	}
	// The target's byte says whether it will invalidate; ours, whether it may.
	c.sendInv = inv && iscsi.CMSendInv(peer.Private, caps.PaddedPrivate)
	c.wins = make([]transport.Window, depth)
	for k := range c.wins {
		if c.wins[k], err = qp.NewWindow(); err != nil {
			return fail(err)
		}
	}
	return c, nil
}

// memory takes what one connection needs, in buffers that several PDUs share.
func (c *iserConn) memory(ctx context.Context, i *Initiator, k *kept, depth, nring int) error {
	const login, ring, ctl = iserHead + iscsi.DefaultRecvData + 4, iserHead + recvData + 4, 256
	m := carver{i: i, k: k, had: k.take(), left: 2*lines(login) + nring*lines(ring) + depth*lines(slotSize) + controls*lines(ctl)}
	pair, err := m.cut(ctx, 2, login)
	if err == nil {
		c.logTx, c.logRx = pair[0], pair[1]
		c.ring, err = m.cut(ctx, nring, ring)
	}
	if err == nil {
		c.slots, err = m.cut(ctx, depth, slotSize)
	}
	if err == nil {
		c.ctl, err = m.cut(ctx, controls, ctl)
	}
	if err = m.done(err); err != nil {
		return err
	}
	c.kept, c.bufs = k, m.bufs
	for k := range c.ctl {
		c.ctlFree = append(c.ctlFree, k)
	}
	return nil
}

func (c *iserConn) release() {
	c.kept.put(c.bufs)
	c.bufs = nil
}

// drain closes the queue pair and waits until nothing of it can touch memory.
func (c *iserConn) drain(err error) {
	c.close(err)
	_ = c.poll.Drain(nil)
}

// linger leaves it to the target to close after a logout, for a moment: LIO over siw takes a connection that ends while it
// still completes the Logout Response for a failure, and frees the command twice.
func (c *iserConn) linger() {
	ctx, cancel := context.WithTimeout(context.Background(), lingerTimeout)
	defer cancel()
	for {
		if _, err := c.poll.Next(ctx, true); err != nil {
			return
		}
	}
}

func (c *iserConn) close(err error) {
	var pe *iscsi.ProtocolError
	r := transport.Reason{Cut: cut(err)} // see tcpConn.close
	if errors.As(err, &pe) {
		r.Err = err
	}
	_ = c.qp.Close(r) // whatever it says, the owner sees the end in Poll
}

func (c *iserConn) maxSGE() int { return min(c.sge, c.bind) }

func (c *iserConn) postLogin() error {
	_, err := c.qp.PostRecv([]transport.Recv{{Token: tokLoginRecv, Buf: c.logRx}})
	return err
}

// prepare posts the ring of full-feature phase before the request that may end the login: the target may send as soon
// as it has answered.
func (c *iserConn) prepare() error {
	if len(c.ring) == 0 {
		return nil
	}
	c.recvs = c.recvs[:0]
	for k := range c.ring {
		c.recvs = append(c.recvs, transport.Recv{Token: tokRecv | uint64(k), Buf: c.ring[k]})
	}
	_, err := c.qp.PostRecv(c.recvs)
	return err
}

// exchange is one step of login or of a text negotiation on a discovery session.
func (c *iserConn) exchange(ctx context.Context, h iscsi.BHS, data []byte) (iscsi.BHS, []byte, error) {
	b := c.logTx.Bytes()
	var ih iscsi.ISERHeader
	ih.Put(b)
	copy(b[iscsi.ISERHeaderLen:], h)
	n := iserHead + copy(b[iserHead:], data)
	for range iscsi.Pad(len(data)) {
		b[n] = 0
		n++
	}
	c.sends++
	wr := [1]transport.WR{{Op: transport.OpSend, Flags: transport.Signaled, Token: tokSend, Local: []mem.Span{c.logTx.Cut(0, n)}}}
	if _, err := c.qp.Post(wr[:]); err != nil {
		return nil, nil, c.cause(err)
	}
	var got []byte
	for sent := false; !sent || got == nil; {
		wcs, err := c.poll.AtMost(ctx, true, 2)
		for _, wc := range wcs {
			switch {
			case wc.Err != nil:
				if err == nil {
					err = wc.Err
				}
			case wc.Op == transport.OpSend:
				sent = true
			case wc.Op == transport.OpRecv:
				src := c.logRx
				if wc.Token&tokKind == tokRecv {
					src = c.ring[wc.Token&^tokKind]
				}
				got = append([]byte(nil), src.Bytes()[:wc.Len]...)
				// A buffer is ready again before another request leaves.
				if _, perr := c.qp.PostRecv([]transport.Recv{{Token: wc.Token, Buf: src}}); perr != nil && err == nil {
					err = perr
				}
			}
		}
		if err != nil {
			return nil, nil, c.cause(err)
		}
	}
	return parseISER(got)
}

// parseISER splits a received message into header and data segment, believing no length.
func parseISER(b []byte) (iscsi.BHS, []byte, error) {
	var ih iscsi.ISERHeader
	kind, err := ih.Parse(b)
	if err != nil {
		return nil, nil, err
	}
	if kind != iscsi.ISERControl || len(b) < iserHead {
		return nil, nil, &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Detail: "a message that holds no iSCSI PDU"}
	}
	h := iscsi.BHS(b[iscsi.ISERHeaderLen:iserHead:iserHead])
	from := iserHead + h.AHSLen()
	if from+h.DataLen() > len(b) {
		return nil, nil, &iscsi.ProtocolError{RFC: 7145, Clause: "9.2", Detail: fmt.Sprintf("a PDU of %d data bytes in a message of %d", h.DataLen(), len(b))}
	}
	return h, b[from : from+h.DataLen()], nil
}

// cause names the reason of a broken connection rather than its symptom.
func (c *iserConn) cause(err error) error {
	var te *transport.TerminateError
	if errors.As(err, &te) || !errors.Is(err, transport.ErrClosed) {
		return err
	}
	if _, perr := c.poll.Next(context.Background(), false); errors.As(perr, &te) {
		return perr
	}
	return fmt.Errorf("the connection was closed: %w", err)
}
