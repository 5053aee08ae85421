package srp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	wire "github.com/sluice-storage/sluice/internal/srp"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// refusedError is why a login is refused.
type refusedError struct {
	reason wire.RejectReason
	detail string
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("srp: login refused: %s (%s)", e.detail, e.reason)
}

func refusal(r wire.RejectReason, format string, a ...any) error {
	return &refusedError{r, fmt.Sprintf(format, a...)}
}

// run is the owner of a channel, from its connection request to its end.
func (c *channel) run(r transport.Request) {
	ctx, cancel := context.WithTimeout(c.ctx, c.srv.opt.Login)
	result, err := c.begin(ctx)
	if err == nil {
		err = c.open(ctx)
	}
	if err != nil {
		c.refuse(r, err)
	} else if err = c.accept(ctx, r, result); err != nil {
		c.plog.Warn("SRP channel not accepted", zap.Stringer("remote", c.peer.Remote), zap.Error(err))
	}
	cancel()
	if err == nil {
		c.srv.began(c)
		err = c.owner.Run(c.ctx)
	}
	c.finish(err)
}

// begin checks the login request and makes the channel one of its session.
func (c *channel) begin(ctx context.Context) (result uint8, err error) {
	if c.login, err = wire.ParseLoginReq(c.peer.Private); err != nil {
		return 0, refusal(wire.RejUnable, "%v", err)
	}
	l := &c.login
	switch {
	case l.Formats&^(wire.FormatDirect|wire.FormatIndirect) != 0:
		return 0, refusal(wire.RejFormat, "the buffer formats %04Xh are not all direct or indirect", uint16(l.Formats))
	case l.MaxITUnit > maxUnit:
		return 0, refusal(wire.RejUnitTooLarge, "units of %d bytes, where %d is the most", l.MaxITUnit, maxUnit)
	}
	c.unit = (max(int(l.MaxITUnit), leastUnit) + 63) &^ 63
	c.credits = min(c.srv.opt.Queue, max(2, receiveMemory/c.unit-spareReceives))
	if err := c.srv.reserve(c, int64(c.unit)*int64(c.credits+spareReceives)); err != nil {
		return 0, err
	}
	if off := int(l.ImmOffset); l.Immediate() && off >= wire.CmdLen+4 && off < c.unit {
		c.immediate = off
	}
	return c.srv.enter(ctx, c)
}

// open gets the memory of the channel, and its queue pair with all receives posted: the initiator may send as soon as it is accepted.
func (c *channel) open(ctx context.Context) error {
	n := c.credits + spareReceives
	c.quota = c.srv.opt.Memory.Quota(2*receiveMemory + 256<<10)
	if err := c.carve(ctx, n, c.unit, &c.recvs); err != nil {
		return err
	}
	if err := c.carve(ctx, n+spareReceives, responseUnit, &c.sendMem); err != nil {
		return err
	}
	c.sends = make([]sendSlot, len(c.sendMem))
	for i := range c.sends {
		c.freeSend = append(c.freeSend, len(c.sends)-1-i)
	}
	qp, err := c.dev.NewQP(transport.QPOptions{Sends: 4*n + writesTogether, Recvs: n})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.owner.QP = qp
	killed := c.killErr
	c.mu.Unlock()
	if killed != nil {
		return killed
	}
	recvs := make([]transport.Recv, n)
	for i := range recvs {
		recvs[i] = transport.Recv{Token: token(tokRecv, i), Buf: c.recvs[i]}
	}
	_, err = qp.PostRecv(recvs)
	return err
}

// carve gets memory for n pieces of size bytes, and waits for it.
func (c *channel) carve(ctx context.Context, n, size int, into *[]mem.Span) error {
	for len(*into) < n {
		b, err := c.quota.Await(ctx, max(size, min(64<<10, (n-len(*into))*size)))
		if err != nil {
			return refusal(wire.RejResources, "no memory for its receives (%v); is `memory` too small for the sessions?", err)
		}
		c.bufs = append(c.bufs, b)
		for s := b.Span(); s.Len >= size && len(*into) < n; s = s.Cut(size, s.Len-size) {
			*into = append(*into, s.Cut(0, size))
		}
	}
	return nil
}

// accept answers the connection request with the login response.
func (c *channel) accept(ctx context.Context, r transport.Request, result uint8) error {
	rsp := wire.LoginRsp{Tag: c.login.Tag, Credits: int32(c.credits), MaxITUnit: uint32(c.unit), MaxTIUnit: responseUnit, Formats: wire.FormatDirect | wire.FormatIndirect, Flags: result}
	if c.immediate > 0 {
		rsp.Flags |= wire.ImmedSupport
	}
	private := make([]byte, wire.LoginRspLen)
	rsp.Put(private)
	// This target serves no Reads: it advertises no memory at all.
	p := transport.ConnParams{Private: private, ReadsOut: min(readsPerQP, c.caps.MaxReads)}
	if c.peer.Named {
		p.ReadsOut, p.ReadsIn = min(p.ReadsOut, c.peer.ReadsIn), min(1, c.peer.ReadsOut)
	}
	if err := r.Accept(ctx, c.owner.QP, p); err != nil {
		return err
	}
	c.depth = c.owner.QP.Depth()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.promised = c.credits
	channelLife.Move(&c.state, channelLive) // what has come meanwhile is seen by Run
	c.ticker = time.AfterFunc(c.tickEvery(), c.tick)
	return nil
}

// refuse answers the connection request with SRP_LOGIN_REJ.
func (c *channel) refuse(r transport.Request, why error) {
	rej := wire.LoginRej{Tag: c.login.Tag, Reason: wire.RejResources, Formats: wire.FormatDirect | wire.FormatIndirect}
	var e *refusedError
	if errors.As(why, &e) {
		rej.Reason = e.reason
	}
	c.srv.refused(c, rej.Reason, why)
	private := make([]byte, wire.LoginRejLen)
	rej.Put(private)
	_ = r.Reject(private) // its error is that of an initiator that has gone meanwhile
}
