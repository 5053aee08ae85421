package nbd

import (
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/sockio"
)

// output sends answers. The goroutine that sets busy sends for all: the volume's goroutine, after the callbacks of all requests that
// ended together, as far as the answers are short and the socket takes them; the connection's own goroutine what is long
// or has to wait.
type output struct {
	c    *conn
	sock *sockio.Writer
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
	left  []unix.Iovec // of iov, what is not sent
}

func (o *output) init(c *conn, raw syscall.RawConn) {
	o.c, o.sock, o.kick = c, sockio.NewWriter(raw), make(chan struct{}, 1)
	o.batch = make([]*slot, 0, slots)
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

// Flush sends what is queued, or leaves that to the goroutine that is sending. It does not block.
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
	o.iov = o.iov[:0]
	for ; l != nil; l = l.next {
		o.batch = append(o.batch, l)
		o.iov = l.encode(o.iov)
	}
	o.left = o.iov
}

// step sends the batch and frees its slots. It reports false when the socket is full and it may not wait.
func (o *output) step(wait bool) bool {
	for len(o.left) > 0 && !o.broken {
		var n int
		var err error
		if wait {
			n, err = o.sock.Write(o.left)
		} else {
			n, err = o.sock.Try(o.left)
		}
		switch {
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			o.broken = true
			_ = o.c.nc.Close() // the reader ends
		default:
			o.left = sockio.Advance(o.left, n)
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
