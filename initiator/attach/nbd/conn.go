package nbd

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// conn is one connection.
type conn struct {
	s          *Server
	nc         net.Conn
	in         input
	out        output
	structured bool
	status     bool // base:allocation was chosen

	quota *mem.Quota
	free  chan *slot
	batch []*blockdev.Request // read and checked, to be submitted together
}

// slot is one request under way.
type slot struct {
	c       *conn
	req     blockdev.Request
	bufs    []*mem.Buf
	spans   []mem.Span
	extents []blockdev.Extent
	held    int64 // of the server's budget
	cookie  uint64
	cmd     uint16
	flags   uint16
	off     uint64
	err     error
	head    [structuredLen + 12 + 8*maxExtents]byte
	next    *slot
}

func newConn(s *Server, nc net.Conn) (*conn, error) {
	c := &conn{s: s, nc: nc, free: make(chan *slot, slots), batch: make([]*blockdev.Request, 0, slots), quota: s.quota()}
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return nil, errors.New("nbd: a connection without a descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	c.in.init(raw)
	c.out.init(c, raw)
	return c, nil
}

// transmit answers requests until the client leaves or breaks the protocol. It returns when every request has ended.
func (c *conn) transmit() error {
	for range slots {
		sl := &slot{c: c, extents: make([]blockdev.Extent, 0, maxExtents)}
		sl.req.Done = func(*blockdev.Request) { c.answer(sl) }
		c.free <- sl
	}
	var wg sync.WaitGroup
	wg.Go(c.out.run)
	err := c.read()
	c.submit()
	if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
		err = nil
	}
	for range slots { // every slot comes back: then nothing is under way
		<-c.free
	}
	close(c.out.kick)
	wg.Wait()
	c.quota.Close()
	return err
}

func (c *conn) read() error {
	for {
		if c.in.buffered() < requestLen {
			c.submit() // nothing waits for what may be long in coming
		}
		h, err := c.in.next(requestLen)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				return broke("the connection ended inside a request")
			}
			return err
		}
		if be.Uint32(h) != magicRequest {
			return broke("a request begins with 0x%x", h[:4])
		}
		cmd := be.Uint16(h[6:])
		if cmd == cmdDisc {
			return nil
		}
		sl := c.slot()
		sl.flags, sl.cmd, sl.cookie, sl.off, sl.err = be.Uint16(h[4:]), cmd, be.Uint64(h[8:]), be.Uint64(h[16:]), nil
		n := uint64(be.Uint32(h[24:]))
		if err := c.start(sl, n); err != nil {
			sl.release()
			c.free <- sl
			return err
		}
	}
}

// slot waits for a free one, and lets nothing wait meanwhile.
func (c *conn) slot() *slot {
	select {
	case sl := <-c.free:
		return sl
	default:
	}
	c.submit()
	return <-c.free
}

// submit gives the volume what has been read since the last time: requests that came together leave together.
func (c *conn) submit() {
	if len(c.batch) > 0 {
		c.s.vol.SubmitAll(c.batch)
		c.batch = c.batch[:0]
	}
}

// start checks a request, takes its payload and submits it. An error ends the connection; what is only wrong with the
// request is answered.
func (c *conn) start(sl *slot, n uint64) error {
	if sl.cmd == cmdWrite || sl.cmd == cmdRead {
		if most := uint64(c.s.payload()); n > most {
			if sl.cmd == cmdWrite {
				return broke("a write of %d bytes; at most %d are taken", n, most)
			}
			return c.refuse(sl, unix.EOVERFLOW)
		}
	}
	r := &sl.req
	*r = blockdev.Request{Done: r.Done, Priv: r.Priv, After: &c.out, Offset: int64(sl.off), Length: int64(n), FUA: sl.flags&flagFUA != 0}
	write := sl.cmd == cmdWrite || sl.cmd == cmdTrim || sl.cmd == cmdWriteZeroes
	bad := c.s.check(sl.off, n, write)
	switch sl.cmd {
	case cmdRead:
		r.Op = blockdev.Read
	case cmdWrite:
		r.Op = blockdev.Write
		if bad != nil {
			if err := c.in.discard(int(n)); err != nil {
				return err
			}
		}
	case cmdFlush:
		r.Op, r.Offset, r.Length, bad = blockdev.Flush, 0, 0, nil
	case cmdTrim:
		r.Op = blockdev.Discard
	case cmdWriteZeroes:
		r.Op, r.Unmap = blockdev.WriteZeroes, sl.flags&flagNoHole == 0
	case cmdCache:
		// Caching is the target's affair; the request only promises that nothing is wrong with the range.
		return c.refuse(sl, bad)
	case cmdBlockStatus:
		if !c.status {
			return c.refuse(sl, unix.EINVAL)
		}
		r.Op, r.Extents = blockdev.Status, sl.extents[:0]
	default:
		return c.refuse(sl, unix.EINVAL)
	}
	if bad != nil {
		return c.refuse(sl, bad)
	}
	if sl.flags&flagDF != 0 && !c.structured && sl.cmd != cmdWrite {
		return c.refuse(sl, unix.EINVAL)
	}
	if sl.cmd == cmdRead || sl.cmd == cmdWrite {
		if err := c.take(sl, int(n)); err != nil {
			if sl.cmd == cmdWrite {
				if err := c.in.discard(int(n)); err != nil {
					return err
				}
			}
			return c.refuse(sl, unix.ESHUTDOWN)
		}
		r.Data = sl.spans
		if sl.cmd == cmdWrite {
			if c.in.buffered() < int(n) {
				c.submit()
			}
			if err := c.in.fill(sl.spans); err != nil {
				return broke("the connection ended inside a write")
			}
		}
	}
	c.batch = append(c.batch, r)
	return nil
}

func (c *conn) refuse(sl *slot, err error) error {
	sl.err = err
	c.out.add(sl)
	c.out.Flush()
	return nil
}

func (sl *slot) release() {
	for i, b := range sl.bufs {
		b.Release()
		sl.bufs[i] = nil
	}
	sl.bufs, sl.spans = sl.bufs[:0], sl.spans[:0]
	if n := sl.held; n > 0 {
		sl.held = 0
		sl.c.s.memory.give(n)
	}
}

// answer is the volume's callback; the output's Flush follows it.
func (c *conn) answer(sl *slot) {
	sl.err = sl.req.Err
	if r := &sl.req; sl.err == nil && r.Op == blockdev.Discard && r.FUA {
		// UNMAP has no FUA: what it did is durable after a flush.
		r.Op, r.Offset, r.Length = blockdev.Flush, 0, 0
		c.s.vol.SubmitAll([]*blockdev.Request{r})
		return
	}
	switch {
	case !errors.Is(sl.err, blockdev.ErrUnsupported):
	case sl.cmd == cmdBlockStatus: // a target without GET LBA STATUS: everything may hold data
		sl.req.Extents = append(sl.req.Extents[:0], blockdev.Extent{Offset: sl.req.Offset, Length: sl.req.Length, Mapped: true})
		sl.err = nil
	default:
		sl.err = unix.EOPNOTSUPP
	}
	c.out.add(sl)
}
