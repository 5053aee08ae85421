package nbd

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/mem"
)

// conn is one connection.
type conn struct {
	s          *Server
	nc         net.Conn
	r          *bufio.Reader // headers; payload beyond what it has buffered is read straight into registered memory
	structured bool
	status     bool // base:allocation was chosen

	free chan *slot
	done chan struct{} // the writer has ended

	mu      sync.Mutex
	cond    sync.Cond
	ready   *slot // answered by the volume, newest first
	stopped bool  // no more slots will come
	broken  error // the socket failed: answers are thrown away
}

// slot is one request under way.
type slot struct {
	c       *conn
	req     block.Request
	bufs    []*mem.Buf
	spans   []mem.Span
	extents []block.Extent
	cookie  uint64
	cmd     uint16
	flags   uint16
	off     uint64
	err     error
	head    [structuredLen + 12 + 8*maxExtents]byte
	next    *slot
}

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{s: s, nc: nc, r: bufio.NewReaderSize(nc, 16<<10), free: make(chan *slot, slots), done: make(chan struct{})}
	c.cond.L = &c.mu
	return c
}

// transmit answers requests until the client leaves or breaks the protocol. It returns when every request has ended.
func (c *conn) transmit() error {
	for range slots {
		sl := &slot{c: c, extents: make([]block.Extent, 0, maxExtents)}
		sl.req.Done = func(*block.Request) { c.answer(sl) }
		c.free <- sl
	}
	go c.write()
	err := c.read()
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = nil
	}
	for range slots { // every slot comes back: then nothing is under way
		<-c.free
	}
	c.mu.Lock()
	c.stopped = true
	c.cond.Signal()
	c.mu.Unlock()
	<-c.done
	return err
}

func (c *conn) read() error {
	var h [requestLen]byte
	for {
		if _, err := io.ReadFull(c.r, h[:]); err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return broke("the connection ended inside a request")
			}
			return err
		}
		if be.Uint32(h[:]) != magicRequest {
			return broke("a request begins with 0x%x", h[:4])
		}
		cmd := be.Uint16(h[6:])
		if cmd == cmdDisc {
			return nil
		}
		sl := <-c.free
		sl.flags, sl.cmd, sl.cookie, sl.off, sl.err = be.Uint16(h[4:]), cmd, be.Uint64(h[8:]), be.Uint64(h[16:]), nil
		n := uint64(be.Uint32(h[24:]))
		if err := c.start(sl, n); err != nil {
			sl.release()
			c.free <- sl
			return err
		}
	}
}

// start checks a request, takes its payload and submits it. An error ends the connection; what is only wrong with the
// request is answered.
func (c *conn) start(sl *slot, n uint64) error {
	if sl.cmd == cmdWrite || sl.cmd == cmdRead {
		if n > maxPayload {
			if sl.cmd == cmdWrite {
				return broke("a write of %d bytes; at most %d are taken", n, maxPayload)
			}
			return c.refuse(sl, unix.EOVERFLOW)
		}
	}
	r := &sl.req
	*r = block.Request{Done: r.Done, Offset: int64(sl.off), Length: int64(n), FUA: sl.flags&flagFUA != 0}
	write := sl.cmd == cmdWrite || sl.cmd == cmdTrim || sl.cmd == cmdWriteZeroes
	bad := c.s.check(sl.off, n, write)
	switch sl.cmd {
	case cmdRead:
		r.Op = block.Read
	case cmdWrite:
		r.Op = block.Write
		if bad != nil {
			if _, err := io.CopyN(io.Discard, c.r, int64(n)); err != nil {
				return err
			}
		}
	case cmdFlush:
		r.Op, r.Offset, r.Length, bad = block.Flush, 0, 0, nil
	case cmdTrim:
		r.Op = block.Discard
	case cmdWriteZeroes:
		r.Op, r.Unmap = block.WriteZeroes, sl.flags&flagNoHole == 0
	case cmdCache:
		// Caching is the target's affair; the request only promises that nothing is wrong with the range.
		return c.refuse(sl, bad)
	case cmdBlockStatus:
		if !c.status {
			return c.refuse(sl, unix.EINVAL)
		}
		r.Op, r.Extents = block.Status, sl.extents[:0]
	default:
		return c.refuse(sl, unix.EINVAL)
	}
	if bad != nil {
		return c.refuse(sl, bad)
	}
	if sl.cmd == cmdRead || sl.cmd == cmdWrite {
		if err := sl.take(int(n)); err != nil {
			if sl.cmd == cmdWrite {
				if _, err := io.CopyN(io.Discard, c.r, int64(n)); err != nil {
					return err
				}
			}
			return c.refuse(sl, unix.ENOMEM)
		}
		r.Data = sl.spans
		if sl.cmd == cmdWrite {
			for _, s := range sl.spans {
				if _, err := io.ReadFull(c.r, s.Bytes()); err != nil {
					return broke("the connection ended inside a write")
				}
			}
		}
	}
	c.s.vol.Submit(r)
	return nil
}

func (c *conn) refuse(sl *slot, err error) error {
	sl.err = err
	c.enqueue(sl)
	return nil
}

// take gets registered memory of n bytes.
func (sl *slot) take(n int) error {
	for n > 0 {
		b, err := sl.c.s.vol.Memory().Get(min(n, mem.MaxBuf))
		if err != nil {
			sl.release()
			return err
		}
		sl.bufs, sl.spans = append(sl.bufs, b), append(sl.spans, b.Span())
		n -= b.Len()
	}
	return nil
}

func (sl *slot) release() {
	for i, b := range sl.bufs {
		b.Release()
		sl.bufs[i] = nil
	}
	sl.bufs, sl.spans = sl.bufs[:0], sl.spans[:0]
}

// answer is the volume's callback.
func (c *conn) answer(sl *slot) {
	sl.err = sl.req.Err
	switch {
	case !errors.Is(sl.err, block.ErrUnsupported):
	case sl.cmd == cmdBlockStatus: // a target without GET LBA STATUS: everything may hold data
		sl.req.Extents = append(sl.req.Extents[:0], block.Extent{Offset: sl.req.Offset, Length: sl.req.Length, Mapped: true})
		sl.err = nil
	default:
		sl.err = unix.EOPNOTSUPP
	}
	c.enqueue(sl)
}

func (c *conn) enqueue(sl *slot) {
	c.mu.Lock()
	sl.next, c.ready = c.ready, sl
	c.cond.Signal()
	c.mu.Unlock()
}

// write sends answers, all that are ready with one writev, and frees their slots.
func (c *conn) write() {
	defer close(c.done)
	var out net.Buffers
	var batch []*slot
	for {
		c.mu.Lock()
		for c.ready == nil && !c.stopped {
			c.cond.Wait()
		}
		l, broken := c.ready, c.broken
		c.ready = nil
		c.mu.Unlock()
		if l == nil {
			return
		}
		out, batch = out[:0], batch[:0]
		for ; l != nil; l = l.next {
			batch = append(batch, l)
			out = l.encode(out)
		}
		if broken == nil {
			w := out // WriteTo consumes the slice it is called on
			if _, err := w.WriteTo(c.nc); err != nil {
				c.mu.Lock()
				c.broken = err
				c.mu.Unlock()
				_ = c.nc.Close() // the reader ends
			}
		}
		for _, sl := range batch {
			sl.release()
			c.free <- sl
		}
	}
}

// encode appends the reply of a finished request.
func (sl *slot) encode(out net.Buffers) net.Buffers {
	no := errnoOf(sl.err)
	h := sl.head[:0]
	if !sl.c.structured {
		h = be.AppendUint32(h, magicSimple)
		h = be.AppendUint32(h, no)
		h = be.AppendUint64(h, sl.cookie)
		return sl.payload(append(out, h), no)
	}
	chunk := func(kind uint16, n int) {
		h = be.AppendUint32(h, magicStructured)
		h = be.AppendUint16(h, chunkDone)
		h = be.AppendUint16(h, kind)
		h = be.AppendUint64(h, sl.cookie)
		h = be.AppendUint32(h, uint32(n))
	}
	switch {
	case no != 0:
		chunk(chunkError, 6)
		h = be.AppendUint32(h, no)
		h = be.AppendUint16(h, 0)
	case sl.cmd == cmdRead:
		chunk(chunkOffsetData, 8+int(sl.req.Length))
		h = be.AppendUint64(h, sl.off)
	case sl.cmd == cmdBlockStatus:
		ext := sl.req.Extents
		if sl.flags&flagReqOne != 0 && len(ext) > 1 {
			ext = ext[:1]
		}
		chunk(chunkBlockStatus, 4+8*len(ext))
		h = be.AppendUint32(h, contextID)
		for _, e := range ext {
			h = be.AppendUint32(h, uint32(min(e.Length, 1<<32-int64(1<<20))))
			state := uint32(0)
			if !e.Mapped {
				state = stateHole | stateZero
			}
			h = be.AppendUint32(h, state)
		}
	default:
		chunk(chunkNone, 0)
	}
	return sl.payload(append(out, h), no)
}

func (sl *slot) payload(out net.Buffers, no uint32) net.Buffers {
	if no == 0 && sl.cmd == cmdRead {
		for _, s := range sl.spans {
			out = append(out, s.Bytes())
		}
	}
	return out
}
