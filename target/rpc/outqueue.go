package rpc

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/rpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// outQueue writes the replies of a stream. At most one goroutine writes at a time: active is its role, and batch, bufs
// and iovs are its own. It writes without waiting; what the socket does not take is left to a flusher that waits.
type outQueue struct {
	c  *stream
	mu sync.Mutex
	// guarded by mu:
	queue  []*Call
	bytes  int
	active bool
	failed bool

	broken atomic.Bool // failed, for the reader

	batch   []*Call
	bufs    [][]byte
	iovs    []unix.Iovec
	done    int // buffers of bufs written in whole
	err     error
	mayWait bool // the writer may wait for the socket
	try     func(fd uintptr) bool
	flusher sync.WaitGroup
}

func (q *outQueue) init(c *stream) {
	q.c = c
	q.try = q.writev
}

// send queues a reply, and writes the queue if flush is set, or it has grown, and nobody writes.
func (q *outQueue) send(call *Call, flush bool) {
	n := len(call.Out) + max(call.payload, 0)
	n += xdr.Pad(n)
	rpc.PutMark(call.mark[:], n, true)
	q.mu.Lock()
	if q.failed {
		q.mu.Unlock()
		q.c.drop(call)
		return
	}
	q.queue = append(q.queue, call)
	q.bytes += n
	if q.active || !flush && q.bytes < flushBytes {
		q.mu.Unlock()
		return
	}
	q.active = true
	q.mu.Unlock()
	q.drain(false)
}

func (q *outQueue) flush() {
	q.mu.Lock()
	if q.active || len(q.queue) == 0 {
		q.mu.Unlock()
		return
	}
	q.active = true
	q.mu.Unlock()
	q.drain(false)
}

// wait returns when no flusher runs any more; the connection is closed by then. It drops what nobody will write.
func (q *outQueue) wait() {
	q.flusher.Wait()
}

// drain writes until the queue is empty. The caller has the role.
func (q *outQueue) drain(mayWait bool) {
	for {
		if q.done == len(q.bufs) || q.err != nil {
			q.finish()
			q.mu.Lock()
			if q.err != nil {
				q.failed = true
			}
			if len(q.queue) == 0 {
				q.active = false
				q.mu.Unlock()
				return
			}
			q.queue, q.batch = q.batch, q.queue
			q.bytes = 0
			q.mu.Unlock()
			if q.err != nil {
				continue
			}
			q.gather()
		}
		if !q.write(mayWait) {
			q.flusher.Add(1)
			go func() {
				defer q.flusher.Done()
				q.drain(true)
			}()
			return
		}
	}
}

// gather lists the buffers of the batch.
func (q *outQueue) gather() {
	q.bufs, q.done = q.bufs[:0], 0
	for _, c := range q.batch {
		q.bufs = append(q.bufs, c.mark[:], c.Out)
		if c.payload > 0 {
			left := c.payload
			for _, b := range c.sink {
				b = b[:min(len(b), left)]
				if left -= len(b); len(b) > 0 {
					q.bufs = append(q.bufs, b)
				}
			}
			if p := xdr.Pad(c.payload); p > 0 {
				q.bufs = append(q.bufs, c.trailer[:p])
			}
		}
	}
}

// finish releases the batch.
func (q *outQueue) finish() {
	for i, c := range q.batch {
		q.batch[i] = nil
		q.c.s.stats.bytesOut.Add(uint64(len(c.Out) + max(c.payload, 0)))
		q.c.drop(c)
	}
	clear(q.bufs)
	q.batch, q.bufs, q.done = q.batch[:0], q.bufs[:0], 0
}

// write writes the batch, and reports false when the socket takes no more and mayWait is false.
func (q *outQueue) write(mayWait bool) bool {
	if q.c.raw == nil {
		if !mayWait {
			return false
		}
		for ; q.done < len(q.bufs); q.done++ {
			if _, err := q.c.nc.Write(q.bufs[q.done]); err != nil {
				q.fail(err)
				return true
			}
		}
		return true
	}
	q.mayWait = mayWait
	if err := q.c.raw.Write(q.try); err != nil {
		q.fail(err)
	} else if q.err != nil {
		q.fail(q.err)
	}
	return q.err != nil || q.done == len(q.bufs)
}

// fail ends the connection: a record that is half written cannot be taken back.
func (q *outQueue) fail(err error) {
	q.err = err
	q.broken.Store(true)
	_ = q.c.nc.Close()
}

// writev is the function that raw.Write calls with the descriptor: false makes it wait until there is room.
func (q *outQueue) writev(fd uintptr) bool {
	for q.done < len(q.bufs) {
		q.iovs = q.iovs[:0]
		for _, b := range q.bufs[q.done:min(len(q.bufs), q.done+maxIovecs)] {
			iov := unix.Iovec{Base: unsafe.SliceData(b)}
			iov.SetLen(len(b))
			q.iovs = append(q.iovs, iov)
		}
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&q.iovs[0])), uintptr(len(q.iovs)))
		switch errno {
		case 0:
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return !q.mayWait
		default:
			q.err = errno // closing here would wait for the descriptor that this function holds
			return true
		}
		for left := int(n); left > 0; {
			b := q.bufs[q.done]
			if left < len(b) {
				q.bufs[q.done] = b[left:]
				break
			}
			left -= len(b)
			q.done++
		}
		for q.done < len(q.bufs) && len(q.bufs[q.done]) == 0 {
			q.done++
		}
	}
	return true
}
