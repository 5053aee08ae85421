package iscsi

import (
	"errors"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/mem"
)

// blockData is the data segment that fits a block: sense data, a rejected header.
const blockData = 272

// block is the memory of one PDU to be sent: its header, a short data segment, padding and digests.
type block struct {
	b       [iscsi.BHSLen + iscsi.DigestLen + blockData]byte
	tail    [3 + iscsi.DigestLen]byte
	control bool // is counted in conn.control
	status  bool // is counted in conn.unsent
	next    *block
}

func (k *block) header() iscsi.BHS { return k.b[:iscsi.BHSLen] }

// data is where a short data segment is put before pushLocked moves it behind the header digest, if there is one.
func (k *block) data() []byte { return k.b[iscsi.BHSLen+iscsi.DigestLen:] }

// seg is a run of bytes to be sent.
type seg struct {
	b    []byte
	blk  *block // free after this
	move *task  // its move ends after this
}

func (x *tcpDatamover) blockLocked() *block {
	if b := x.blocks; b != nil {
		x.blocks, b.next, b.control, b.status = b.next, nil, false, false
		return b
	}
	return new(block)
}

// pushLocked queues a PDU whose header is complete: n bytes of data in the block, or data, or spans queued by the caller.
func (x *tcpDatamover) pushLocked(k *block, n int, data []byte, move *task) {
	total := n + len(data)
	h := k.header()
	hd, dd := x.hd && h.Opcode() != iscsi.OpLoginResponse, x.dd && h.Opcode() != iscsi.OpLoginResponse && total > 0
	head := iscsi.BHSLen
	if hd {
		iscsi.PutDigest(k.b[head:], iscsi.Digest(h))
		head += iscsi.DigestLen
	}
	if n > 0 {
		copy(k.b[head:], k.data()[:n])
		x.segLocked(seg{b: k.b[:head+n]})
	} else {
		x.segLocked(seg{b: k.b[:head]})
		if len(data) > 0 {
			x.segLocked(seg{b: data})
		}
	}
	crc := uint32(0)
	if dd {
		crc = iscsi.DigestUpdate(iscsi.Digest(k.b[head:head+n]), data)
	}
	x.pushTailLocked(k, total, dd, crc, move)
}

// pushTailLocked queues padding and data digest, and lets go of the block and the move with the PDU's last byte.
func (x *tcpDatamover) pushTailLocked(k *block, n int, dd bool, crc uint32, move *task) {
	pad := iscsi.Pad(n)
	t := k.tail[:pad]
	clear(t)
	if dd {
		t = k.tail[:pad+iscsi.DigestLen]
		iscsi.PutDigest(t[pad:], iscsi.DigestUpdate(crc, t[:pad]))
	}
	if len(t) > 0 {
		x.segLocked(seg{b: t, blk: k, move: move})
		return
	}
	last := &x.q[len(x.q)-1]
	last.blk, last.move = k, move
}

func (x *tcpDatamover) segLocked(s seg) {
	x.q = append(x.q, s)
	x.queued += len(s.b)
}

// dataInLocked cuts a move into Data-In PDUs (section 11.7). With Last the status goes in the last of them: phase collapse.
func (x *tcpDatamover) dataInLocked(t *task) {
	c := x.c
	in := &t.in
	left, off := int(mem.Total(in.data)), in.off
	data := mem.At(in.data, 0)
	for left > 0 {
		n := min(left, c.params.MaxSend, c.params.MaxBurst-in.burst)
		left -= n
		in.burst += n
		p := iscsi.DataIn{DataLen: n, LUN: t.lun, ITT: t.itt, TTT: iscsi.Reserved, DataSN: in.dataSN, Offset: uint32(off)}
		in.dataSN++
		off += n
		p.Final = left == 0 || in.burst == c.params.MaxBurst
		if p.Final {
			in.burst = 0
		}
		collapse := left == 0 && t.Last && t.Status == 0 && len(t.Sense) == 0 && t.ExpectOut == 0
		if collapse {
			p.HasStatus, p.Status = true, uint8(t.Status)
			p.Residual, p.Overflow, p.Underflow = residual(t.ExpectIn, t.TransferIn)
			c.retireLocked(t)
		}
		k := x.blockLocked()
		h := k.header()
		p.Put(h)
		if collapse {
			k.status = true
			c.countResponseLocked()
			c.numbersLocked(h, true)
		} else {
			c.numbersLocked(h, false)
			h.SetStatSN(0)
		}
		head := iscsi.BHSLen
		if x.hd {
			iscsi.PutDigest(k.b[head:], iscsi.Digest(h))
			head += iscsi.DigestLen
		}
		x.segLocked(seg{b: k.b[:head]})
		crc := uint32(0)
		for m := n; m > 0; {
			s := data.Next(m)
			m -= len(s)
			if x.dd {
				crc = iscsi.DigestUpdate(crc, s)
			}
			x.segLocked(seg{b: s})
		}
		var move *task
		if left == 0 {
			move = t
		}
		x.pushTailLocked(k, n, x.dd, crc, move)
	}
	if x.queued >= corkBytes {
		x.flushLocked()
	}
}

// flushLocked writes what is queued, unless another goroutine does. It drops the lock around system calls and around
// calls into the device server.
func (x *tcpDatamover) flushLocked() {
	if x.write != writeNone || x.head == len(x.q) {
		return
	}
	writeLife.Move(&x.write, writeInline)
	if x.raw == nil {
		x.handToWriterLocked()
		return
	}
	for x.head < len(x.q) {
		x.gatherLocked()
		x.c.mu.Unlock()
		n, err := x.sock.Try(x.wiov)
		x.c.mu.Lock()
		if errors.Is(err, unix.EAGAIN) {
			x.handToWriterLocked()
			return
		}
		if !x.wroteLocked(n, err) {
			return
		}
	}
	x.flushedLocked()
}

func (x *tcpDatamover) flushedLocked() {
	x.q, x.head = x.q[:0], 0
	x.endWriteLocked()
	if x.closeWhenEmpty {
		x.closeWhenEmpty = false
		x.shut()
	}
}

func (x *tcpDatamover) endWriteLocked() {
	writeLife.Move(&x.write, writeNone)
	x.idle.Broadcast()
}

// wroteLocked advances the queue after a write and ends the moves that it completed. False: the stream is over.
func (x *tcpDatamover) wroteLocked(n int, err error) bool {
	x.queued -= n
	if n > 0 {
		x.c.wrote++
	}
	for n > 0 {
		s := &x.q[x.head]
		if n < len(s.b) {
			s.b = s.b[n:]
			break
		}
		n -= len(s.b)
		if s.blk != nil {
			if s.blk.control {
				x.c.control--
			}
			if s.blk.status {
				x.c.unsent--
			}
			s.blk.next, x.blocks = x.blocks, s.blk
		}
		if s.move != nil && s.move.move == moveIn {
			s.move.endMoveLocked()
			x.done = append(x.done, s.move)
		}
		*s = seg{}
		x.head++
	}
	if x.head > 256 && x.head > len(x.q)/2 {
		m := copy(x.q, x.q[x.head:])
		clear(x.q[m:])
		x.q, x.head = x.q[:m], 0
	}
	if len(x.done) > 0 {
		x.c.mu.Unlock()
		for i, t := range x.done {
			x.done[i] = nil
			t.Moved(nil)
		}
		x.done = x.done[:0]
		x.c.mu.Lock()
	}
	if err != nil {
		x.endWriteLocked()
		if x.c.killErr == nil {
			x.c.killErr = err
		}
		x.close(err)
		return false
	}
	return true
}

// gatherLocked names the bytes of the next writev.
func (x *tcpDatamover) gatherLocked() {
	x.wiov = x.wiov[:0]
	for i := x.head; i < len(x.q) && len(x.wiov) < maxIOV; i++ {
		x.wiov = sockio.Append(x.wiov, x.q[i].b)
	}
}

func (x *tcpDatamover) handToWriterLocked() {
	if x.c.ctx.Err() != nil {
		// The writer has gone or is about to; nothing leaves any more.
		x.endWriteLocked()
		return
	}
	writeLife.Move(&x.write, writeApart)
	if !x.started {
		x.started = true
		x.c.srv.wg.Add(1)
		go x.writer()
	}
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// writer finishes what the socket would not take at once.
func (x *tcpDatamover) writer() {
	c := x.c
	defer c.srv.wg.Done()
	for {
		select {
		case <-x.wake:
		case <-c.ctx.Done():
		}
		c.mu.Lock()
		for x.write == writeApart {
			if x.head == len(x.q) {
				x.flushedLocked()
				break
			}
			x.gatherLocked()
			c.mu.Unlock()
			n, err := x.writeWait()
			c.mu.Lock()
			if !x.wroteLocked(n, err) {
				break
			}
		}
		over := c.ctx.Err() != nil
		if over && x.write == writeApart {
			x.endWriteLocked()
		}
		c.mu.Unlock()
		if over {
			return
		}
	}
}

// writeWait writes once, and waits for room.
func (x *tcpDatamover) writeWait() (int, error) {
	if x.raw == nil {
		var v net.Buffers
		for _, i := range x.wiov {
			v = append(v, unsafe.Slice(i.Base, int(i.Len)))
		}
		n, err := v.WriteTo(x.nc)
		return int(n), err
	}
	return x.sock.Write(x.wiov)
}
