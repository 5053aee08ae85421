package block

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
)

// run is the owner loop.
func (c *tcpConn) run(s *session) error {
	var wg sync.WaitGroup
	wg.Go(func() { c.write(s) })
	err := c.read(s)
	c.close(nil) // what the session has against the connection it has said already
	wg.Wait()
	return err
}

func (c *tcpConn) read(s *session) error {
	for {
		if c.hi-c.lo < iscsi.BHSLen {
			s.mu.Lock()
			s.pumpLocked()
			s.flushLocked()
			s.mu.Unlock()
		}
		if err := c.need(iscsi.BHSLen); err != nil {
			return gone(err)
		}
		if err := c.pdu(s); err != nil {
			err = gone(err)
			s.kill(err)
			return err
		}
	}
}

// gone keeps io.EOF out of what callers see: there it means the end of the volume.
func gone(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the target closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// pdu handles the PDU whose header is in the look-ahead.
func (c *tcpConn) pdu(s *session) error {
	b := iscsi.BHS(c.ahead[c.lo:])
	op, ahs, dlen := b.Opcode(), b.AHSLen(), b.DataLen()
	head := iscsi.BHSLen + ahs
	if c.hdrDig {
		head += iscsi.DigestLen
	}
	if dlen > s.params.MaxRecv {
		return &iscsi.ProtocolError{Clause: "13.12", Detail: fmt.Sprintf("%s with %d bytes of data, where %d were agreed", op, dlen, s.params.MaxRecv)}
	}
	if err := c.need(head); err != nil {
		return err
	}
	if c.hdrDig {
		h := c.ahead[c.lo : c.lo+head]
		if iscsi.ReadDigest(h[head-4:]) != iscsi.Digest(h[:head-4]) {
			// Nothing in the header can be believed, its lengths included (section 7.8).
			return &iscsi.ProtocolError{Clause: "7.8", Detail: "a header digest error"}
		}
	}
	if op == iscsi.OpDataIn {
		return c.dataIn(s, head)
	}
	tail := dlen + iscsi.Pad(dlen)
	if c.datDig && dlen > 0 {
		tail += iscsi.DigestLen
	}
	if tail > maxControl {
		return &iscsi.ProtocolError{Clause: "11.2.1.6", Detail: fmt.Sprintf("%s with %d bytes of data", op, dlen)}
	}
	if err := c.need(head + tail); err != nil {
		return err
	}
	pdu := c.ahead[c.lo : c.lo+head+tail]
	if c.datDig && dlen > 0 && iscsi.ReadDigest(pdu[len(pdu)-4:]) != iscsi.Digest(pdu[head:len(pdu)-4]) {
		return &iscsi.ProtocolError{Clause: "7.8", Detail: "a data digest error"}
	}
	c.lo += head + tail
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return s.err
	}
	if op == iscsi.OpR2T {
		return c.r2t(s, iscsi.BHS(pdu))
	}
	t, err := s.receivedLocked(iscsi.BHS(pdu[:iscsi.BHSLen]), pdu[head:head+dlen])
	if err == nil && t != nil {
		err = c.answeredLocked(s, t)
	}
	return err
}

// answeredLocked ends a task whose response is in, unless its data is still being sent.
func (c *tcpConn) answeredLocked(s *session, t *task) error {
	if t.in && t.err == nil && t.req.Op != rawCommand && t.req.Op != blockdev.Status && t.rcvd != t.edtl {
		taskLives.Move(&t.life, taskSent) // nothing that such a peer says is an outcome
		return &iscsi.ProtocolError{Clause: "11.4.5", Detail: fmt.Sprintf("GOOD status with %d of %d bytes delivered", t.rcvd, t.edtl)}
	}
	if t.queued > 0 {
		// The target gave up early: what is queued of this command is still sent, because its R2T was answered for.
		return nil
	}
	s.finishLocked(t)
	return nil
}

// r2t queues the data that the target asks for (section 11.8).
func (c *tcpConn) r2t(s *session, b iscsi.BHS) error {
	var p iscsi.R2T
	p.Parse(b)
	s.numbersLocked(b, false)
	t := s.lookupLocked(p.ITT)
	bad := func(what string) error {
		return &iscsi.ProtocolError{Clause: "11.8", Detail: "a Ready To Transfer " + what}
	}
	switch {
	case t == nil || t.life != taskSent:
		return bad("for a command that is not out")
	case !t.out:
		return bad("for a command that writes nothing")
	case p.Length == 0 || uint64(p.Offset)+uint64(p.Length) > uint64(t.edtl):
		return bad(fmt.Sprintf("for %d bytes at %d of %d", p.Length, p.Offset, t.edtl))
	case int(p.Length) > s.params.MaxBurst:
		return bad("for more than MaxBurstLength")
	case p.R2TSN != t.r2tSN:
		return bad("out of order")
	case t.queued > s.params.MaxOutstandingR2T+1:
		return bad("beyond MaxOutstandingR2T")
	}
	t.r2tSN++
	t.queued++
	c.mu.Lock()
	c.txq = append(c.txq, txItem{t: t, burst: true, ttt: p.TTT, expStatSN: s.statSN, off: int(p.Offset), n: int(p.Length)})
	c.mu.Unlock()
	c.ring()
	return nil
}

// dataIn places the payload of a Data-In where it belongs.
func (c *tcpConn) dataIn(s *session, head int) error {
	var p iscsi.DataIn
	p.Parse(iscsi.BHS(c.ahead[c.lo:]))
	hdr := [iscsi.BHSLen]byte(c.ahead[c.lo:])
	c.lo += head
	bad := func(what string) error {
		return &iscsi.ProtocolError{Clause: "11.7", Detail: "a Data-In " + what}
	}
	s.mu.Lock()
	t := s.lookupLocked(p.ITT)
	switch {
	case t == nil || t.life != taskSent:
		s.mu.Unlock()
		return bad("for a command that is not out")
	case !t.in:
		s.mu.Unlock()
		return bad("for a command that reads nothing")
	case uint64(p.Offset)+uint64(p.DataLen) > uint64(t.edtl):
		s.mu.Unlock()
		return bad(fmt.Sprintf("of %d bytes at %d of %d", p.DataLen, p.Offset, t.edtl))
	case int64(p.Offset) != t.rcvd:
		s.mu.Unlock()
		return bad("out of order, although DataPDUInOrder was agreed")
	}
	s.mu.Unlock()
	// The task cannot end meanwhile: only this goroutine takes responses.
	if err := c.place(s, t, int(p.Offset), p.DataLen); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.rcvd += int64(p.DataLen)
	s.numbersLocked(iscsi.BHS(hdr[:]), p.HasStatus)
	if p.Ack {
		ack := iscsi.SNACK{Type: iscsi.SNACKDataAck, LUN: s.lun, ITT: iscsi.Reserved, Tag: p.TTT, ExpStatSN: s.statSN, BegRun: p.DataSN + 1}
		if err := s.sendControlLocked(&ack, nil); err != nil {
			return err
		}
	}
	if !p.HasStatus {
		return nil
	}
	residual := int64(0)
	if p.Underflow || p.Overflow {
		residual = int64(p.Residual)
	}
	s.statusLocked(t, p.Status, nil, residual, p.Overflow)
	return c.answeredLocked(s, t)
}

// place moves n bytes of the stream to offset off of a task's memory: what is in the look-ahead by copying, the rest
// straight from the socket.
func (c *tcpConn) place(s *session, t *task, off, n int) error {
	c.iov = c.iov[:0]
	left := n
	crc := uint32(0)
	at := off
	for _, sp := range t.spans {
		if at >= sp.Len {
			at -= sp.Len
			continue
		}
		b := sp.Cut(at, min(sp.Len-at, left)).Bytes()
		at = 0
		k := copy(b, c.ahead[c.lo:c.hi])
		c.lo += k
		left -= len(b)
		if k < len(b) {
			c.iov = append(c.iov, b[k:])
		}
		if left == 0 {
			break
		}
	}
	if len(c.iov) > 0 {
		s.mu.Lock()
		s.pumpLocked()
		s.flushLocked()
		s.mu.Unlock()
		if err := c.fill(); err != nil {
			return err
		}
	}
	tail := iscsi.Pad(n)
	if c.datDig && n > 0 {
		tail += iscsi.DigestLen
	}
	if err := c.need(tail); err != nil {
		return err
	}
	if c.datDig && n > 0 {
		left, at = n, off
		for _, sp := range t.spans {
			if at >= sp.Len {
				at -= sp.Len
				continue
			}
			k := min(sp.Len-at, left)
			crc = iscsi.DigestUpdate(crc, sp.Cut(at, k).Bytes())
			if at, left = 0, left-k; left == 0 {
				break
			}
		}
		end := c.ahead[c.lo : c.lo+tail]
		if iscsi.ReadDigest(end[tail-4:]) != iscsi.DigestUpdate(crc, end[:tail-4]) {
			return &iscsi.ProtocolError{Clause: "7.8", Detail: "a data digest error"}
		}
	}
	c.lo += tail
	return nil
}

// fill reads until everything in c.iov is full; what the socket has beyond it goes into the look-ahead, which is empty.
func (c *tcpConn) fill() error {
	c.lo, c.hi = 0, 0
	for len(c.iov) > 0 {
		want := len(c.iov)
		if c.in != nil {
			c.iov = append(c.iov, c.ahead[:lookahead])
		}
		n, err := c.input()
		c.iov = c.iov[:want]
		if err != nil {
			return err
		}
		done := 0
		for done < want && n >= len(c.iov[done]) {
			n -= len(c.iov[done])
			done++
		}
		if done < want {
			c.iov[done] = c.iov[done][n:]
			n = 0
		}
		c.hi = n
		c.iov = c.iov[:copy(c.iov, c.iov[done:])]
	}
	return nil
}

// need makes n bytes of the stream available in the look-ahead.
func (c *tcpConn) need(n int) error {
	for c.hi-c.lo < n {
		if c.lo > 0 {
			copy(c.ahead, c.ahead[c.lo:c.hi])
			c.hi -= c.lo
			c.lo = 0
		}
		// No more than a little is asked for: the payload behind the headers is to go to its own place.
		c.iov = append(c.iov[:0], c.ahead[c.hi:max(n, min(c.hi+lookahead, aheadSize))])
		k, err := c.input()
		c.iov = c.iov[:0]
		if err != nil {
			return err
		}
		c.hi += k
	}
	return nil
}

// input is one read into c.iov.
func (c *tcpConn) input() (int, error) {
	if c.in == nil {
		return c.conn.Read(c.iov[0])
	}
	c.inVec = c.inVec[:0]
	for _, b := range c.iov {
		c.inVec = sockio.Append(c.inVec, b)
	}
	n, err := c.in.Read(c.inVec)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("read: %w", err)
	}
	return n, err
}
