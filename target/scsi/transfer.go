package scsi

import (
	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// piece is one part of a transfer: its memory and its device request, used again and again.
type piece struct {
	req   blockdev.Request
	bufs  []*mem.Buf
	spans []mem.Span
	off   int64 // into the command's data
	state pieceState
	io    ioState // guarded by x.mu once the device has the request
}

func (p *piece) release() {
	pieceLife.Must(&p.state, pieceFree) // or others are given memory that is in use
	p.bufs = release(p.bufs)
	p.spans = p.spans[:0]
}

// submit gives the piece's request to a device. The runner calls it.
func (p *piece) submit(dev blockdev.Device) {
	ioLife.Move(&p.io, ioUnderWay) // without the lock: no one else knows of the request yet
	dev.Submit(&p.req)
}

// takeDoneLocked reports whether the device request has ended, once.
func (p *piece) takeDoneLocked() bool {
	if p.io != ioEnded {
		return false
	}
	ioLife.Move(&p.io, ioNone)
	return true
}

// setSpans names the first n bytes of the buffers.
func (p *piece) setSpans(n int) { p.spans = mem.Chain(p.spans[:0], p.bufs, 0, n) }

// transfer is the pipelined copy between the medium and the initiator: a ring of pieces from head to tail, of which one
// is with the mover and any number with the device.
type transfer struct {
	piece      [pieces]piece
	head, tail uint
	start      int64 // byte offset on the medium
	total      int64 // bytes on the medium, whole blocks
	move       int64 // bytes that the initiator takes or gives, at most total
	next       int64
	limit      int
	fua        bool
}

func (t *transfer) reset() {
	t.head, t.tail, t.start, t.total, t.move, t.next, t.fua = 0, 0, 0, 0, 0, 0, false
	t.limit = pieceSize
}

func (t *transfer) at(i uint) *piece { return &t.piece[i%pieces] }

// sending reports whether the oldest piece, and so any, is on its way to the initiator.
func (t *transfer) sending() bool { return t.head != t.tail && t.at(t.head).state == pieceSending }

func (c *Command) fail(err error) {
	if c.x.err == nil {
		c.x.err = err
	}
}

// takeDone reports whether p's device request has ended, once.
func (c *Command) takeDone(p *piece) bool {
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	return p.takeDoneLocked()
}

// nextPiece takes memory for the piece at the tail: as much as is left, less while memory is short, or nothing. Only a
// command that holds nothing queues for memory, so commands never wait for each other in a circle.
func (c *Command) nextPiece() *piece {
	t := &c.x.tr
	if t.next >= t.total || t.tail-t.head >= pieces {
		return nil
	}
	p := t.at(t.tail)
	for {
		n := int(min(int64(t.limit), t.total-t.next))
		var ok bool
		if n > minPiece || t.tail != t.head {
			var err error
			p.bufs, err = c.Nexus.opt.Memory.GetAll(n, p.bufs)
			ok = err == nil
		} else {
			p.bufs, ok = c.getMem(n, p.bufs)
		}
		if ok {
			p.setSpans(n)
			p.off = t.next
			p.req.Offset, p.req.Length, p.req.Data, p.req.FUA = t.start+t.next, int64(n), p.spans, t.fua
			// What another command left in the request means nothing here.
			p.req.Err, p.req.Compare, p.req.Unmap, p.req.Atomic, p.req.Extents = nil, nil, false, false, nil
			p.req.Deferrer, _ = c.Mover.(blockdev.Deferrer)
			p.req.After = c.Nexus.opt.Flusher
			t.next += int64(n)
			t.tail++
			return p
		}
		if n <= minPiece {
			return nil
		}
		t.limit = max(n/2&^(minPiece-1), minPiece)
	}
}

// stepRead advances medium to initiator.
func stepRead(c *Command) stepResult {
	t := &c.x.tr
	for {
		stop, busy, progress := c.stopping(), false, false
		for i := t.head; i != t.tail; i++ {
			p := t.at(i)
			if p.state != pieceBusy {
				continue
			}
			if !c.takeDone(p) {
				busy = true
				continue
			}
			pieceLife.Move(&p.state, pieceReady)
			if p.req.Err != nil {
				c.countError(blockdev.Read)
				c.fail(ofDevice(blockdev.Read, p.req.Err, c.x.lu.lba(p.req.Offset)))
				stop = true
			}
		}
		moving := t.sending()
		if moving {
			if ended, err := c.takeMoved(); ended {
				moving = false
				t.at(t.head).release()
				t.head++
				if err != nil {
					c.fail(err)
					stop = true
				}
			}
		}
		if stop {
			if busy || moving {
				return stepWait
			}
			for ; t.head != t.tail; t.head++ {
				t.at(t.head).release()
			}
			return stepDone
		}
		if !moving && t.head != t.tail && t.at(t.head).state == pieceReady {
			p := t.at(t.head)
			if n := int(t.move - p.off); n < int(p.req.Length) {
				p.setSpans(n)
			}
			pieceLife.Move(&p.state, pieceSending)
			progress = true
			c.startMove()
			if p.off+mem.Total(p.spans) >= t.move {
				// Everything has been read: nothing can change the outcome but the move itself.
				c.Status, c.Last = StatusGood, true
			}
			c.Mover.DataIn(c, int(p.off), p.spans)
		}
		if p := c.nextPiece(); p != nil {
			pieceLife.Move(&p.state, pieceBusy)
			p.req.Op, progress = blockdev.Read, true
			p.submit(c.x.lu.dev)
		}
		if t.head == t.tail && t.next >= t.total {
			return stepDone
		}
		if !progress {
			return stepWait
		}
	}
}

// stepWrite advances initiator to medium.
func stepWrite(c *Command) stepResult {
	t := &c.x.tr
	for {
		stop, busy, progress, moving := c.stopping(), false, false, false
		for i := t.head; i != t.tail; i++ {
			p := t.at(i)
			switch p.state {
			case pieceBusy:
				if !c.takeDone(p) {
					busy = true
					continue
				}
				if p.req.Err != nil {
					c.countError(blockdev.Write)
					c.fail(ofDevice(blockdev.Write, p.req.Err, c.x.lu.lba(p.req.Offset)))
					stop = true
				}
				p.release()
			case pieceFilling:
				ended, err := c.takeMoved()
				if !ended {
					moving = true
					continue
				}
				if err != nil {
					c.fail(err)
					stop = true
				}
				if stop {
					p.release()
					continue
				}
				pieceLife.Move(&p.state, pieceBusy)
				busy, progress = true, true
				p.submit(c.x.lu.dev)
			}
		}
		for t.head != t.tail && t.at(t.head).state == pieceFree {
			t.head++
		}
		if stop {
			if busy || moving {
				return stepWait
			}
			return stepDone
		}
		if !moving {
			if p := c.nextPiece(); p != nil {
				pieceLife.Move(&p.state, pieceFilling)
				p.req.Op, progress = blockdev.Write, true
				c.startMove()
				c.Mover.DataOut(c, int(p.off), p.spans)
			}
		}
		if t.head == t.tail && t.next >= t.total {
			return stepDone
		}
		if !progress {
			return stepWait
		}
	}
}

// stepParam sends the parameter data in x.param, cut to what the initiator takes.
func stepParam(c *Command) stepResult {
	t := &c.x.tr
	for {
		stop := c.stopping()
		p := t.at(0)
		if p.state == pieceSending {
			ended, err := c.takeMoved()
			if !ended {
				return stepWait
			}
			p.release()
			t.next = t.total
			c.fail(err)
		}
		if stop || t.next >= t.total {
			return stepDone
		}
		var ok bool
		if p.bufs, ok = c.getMem(int(t.total), p.bufs); !ok {
			if c.x.err != nil {
				return stepDone
			}
			return stepWait
		}
		p.setSpans(int(t.total))
		b := c.x.param
		for _, s := range p.spans {
			b = b[copy(s.Bytes(), b):]
		}
		pieceLife.Move(&p.state, pieceSending)
		c.startMove()
		c.Status, c.Last = StatusGood, true
		c.Mover.DataIn(c, 0, p.spans)
	}
}

// stepFlush waits for one device request without data, already submitted on piece 0.
func stepFlush(c *Command) stepResult {
	p := c.x.tr.at(0)
	c.stopping()
	if !c.takeDone(p) {
		return stepWait
	}
	if p.req.Err != nil {
		c.fail(ofDevice(p.req.Op, p.req.Err, 0))
	}
	return stepDone
}
