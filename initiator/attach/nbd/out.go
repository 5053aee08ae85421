package nbd

import (
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// output sends answers. Whoever sets busy sends for all: the volume's goroutine, after the callbacks of all requests that
// ended together, as far as the answers are short and the socket takes them; the connection's own goroutine what is long
// or has to wait.
type output struct {
	c    *conn
	raw  syscall.RawConn
	kick chan struct{} // hands busy to the connection's goroutine

	mu     sync.Mutex
	busy   bool
	bytes  int // of payload in ready
	ready  *slot
	last   *slot
	broken bool // the socket failed: answers are thrown away

	// The sender's.
	batch []*slot
	iov   []unix.Iovec
	at    int // the first of iov that is not all sent
	hdr   unix.Msghdr
	n     int
	errn  unix.Errno
	try   func(fd uintptr)
	wait  func(fd uintptr) bool
}

func (o *output) init(c *conn, raw syscall.RawConn) {
	o.c, o.raw, o.kick = c, raw, make(chan struct{}, 1)
	o.batch = make([]*slot, 0, slots)
	o.try = o.send
	o.wait = func(fd uintptr) bool {
		o.send(fd)
		return o.errn != unix.EAGAIN
	}
}

// add queues an answer; Flush sends it.
func (o *output) add(sl *slot) {
	sl.next = nil
	o.mu.Lock()
	if o.ready == nil {
		o.ready = sl
	} else {
		o.last.next = sl
	}
	o.last = sl
	if sl.cmd == cmdRead {
		o.bytes += int(sl.req.Length)
	}
	o.mu.Unlock()
}

// Flush sends what is queued, or sees to it that somebody does. It does not block.
func (o *output) Flush() {
	o.mu.Lock()
	if o.busy || o.ready == nil {
		o.mu.Unlock()
		return
	}
	o.busy = true
	for o.ready != nil && o.bytes <= inlinePayload {
		o.take()
		if !o.step(false) {
			o.kick <- struct{}{} // the rest waits for the socket
			return
		}
		o.mu.Lock()
	}
	if o.ready != nil {
		o.mu.Unlock()
		o.kick <- struct{}{}
		return
	}
	o.busy = false
	o.mu.Unlock()
}

// run is the connection's goroutine.
func (o *output) run() {
	for range o.kick {
		if len(o.batch) > 0 {
			o.step(true)
		}
		o.mu.Lock()
		for o.ready != nil {
			o.take()
			o.step(true)
			o.mu.Lock()
		}
		o.busy = false
		o.mu.Unlock()
	}
}

// take makes a batch of what is queued. It unlocks.
func (o *output) take() {
	l := o.ready
	o.ready, o.last, o.bytes = nil, nil, 0
	o.mu.Unlock()
	o.iov, o.at = o.iov[:0], 0
	for ; l != nil; l = l.next {
		o.batch = append(o.batch, l)
		o.iov = l.encode(o.iov)
	}
}

// step sends the batch and frees its slots. It reports false when the socket is full and it may not wait.
func (o *output) step(wait bool) bool {
	for o.at < len(o.iov) && !o.broken {
		var err error
		if wait {
			err = o.raw.Write(o.wait)
		} else {
			err = o.raw.Control(o.try)
		}
		switch {
		case err != nil || o.errn != 0 && o.errn != unix.EAGAIN && o.errn != unix.EINTR:
			o.broken = true
			_ = o.c.nc.Close() // the reader ends
		case o.errn == unix.EAGAIN:
			return false
		case o.errn == 0:
			o.advance(o.n)
		}
	}
	// The slots may be in use again before the loop ends.
	for i, sl := range o.batch {
		o.batch[i] = nil
		sl.release()
		o.c.free <- sl
	}
	o.batch = o.batch[:0]
	return true
}

// send is one system call, a raw one as in transport/iwarp: it does not block, however long the copy takes.
func (o *output) send(fd uintptr) {
	iov := o.iov[o.at:]
	o.hdr.Iov = &iov[0]
	o.hdr.SetIovlen(min(len(iov), maxIOV))
	n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&o.hdr)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	o.n, o.errn = int(n), e
}

func (o *output) advance(n int) {
	for n > 0 {
		v := &o.iov[o.at]
		if uint64(n) < v.Len {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
			v.Len -= uint64(n)
			return
		}
		n -= int(v.Len)
		o.at++
	}
}
