package rpcserver

import (
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// outQueue writes the replies of a stream. At most one goroutine writes at a time: the one that has moved write off writeNone, to which
// belongs what comes behind broken. It writes without waiting; what the socket does not take is left to a flusher that waits.
type outQueue struct {
	c  *stream
	mu sync.Mutex
	// guarded by mu:
	queue []*streamCall
	bytes int
	write writeState // the writer alone moves it off inline and apart, and reads it without the lock

	broken  atomic.Bool   // an error was met, for the reader
	waits   atomic.Bool   // the flusher waits for the peer to take something, for the watch
	written atomic.Uint64 // how often the peer took something since

	batch []*streamCall
	out   []piece
	iovs  []unix.Iovec
	done  int // pieces of out that are written in whole
	err   error
	try   func(fd uintptr) bool

	kick    chan struct{} // makes the flusher the writer; it is there from the first time on
	flusher sync.WaitGroup
}

// piece is a part of the stream: memory, or what is in a pipe.
type piece struct {
	b    []byte
	loan *streamCall
}

func (q *outQueue) init(c *stream) {
	q.c = c
	q.try = q.writeTo
}

// send queues a reply, and writes the queue if flush is set, or it has grown, unless another goroutine writes.
func (q *outQueue) send(sc *streamCall, flush bool) {
	n := sc.call.replyLen()
	q.mu.Lock()
	if q.write == writeBroken {
		q.mu.Unlock()
		sc.drop()
		return
	}
	q.queue = append(q.queue, sc)
	q.bytes += n
	if q.write != writeNone || !flush && q.bytes < flushBytes {
		q.mu.Unlock()
		return
	}
	writeLife.Move(&q.write, writeInline)
	q.mu.Unlock()
	q.drain()
}

func (q *outQueue) flush() {
	q.mu.Lock()
	if q.write != writeNone || len(q.queue) == 0 {
		q.mu.Unlock()
		return
	}
	writeLife.Move(&q.write, writeInline)
	q.mu.Unlock()
	q.drain()
}

// end returns when the flusher has ended. No call is left by then, so none writes.
func (q *outQueue) end() {
	if q.kick != nil {
		close(q.kick)
	}
	q.flusher.Wait()
}

// handOver makes the flusher the writer.
func (q *outQueue) handOver() {
	if q.kick == nil {
		q.kick = make(chan struct{}, 1)
		q.flusher.Add(1)
		go func() {
			defer q.flusher.Done()
			for range q.kick {
				q.waits.Store(true)
				q.drain()
				q.waits.Store(false)
			}
		}()
	}
	q.mu.Lock()
	writeLife.Move(&q.write, writeApart)
	q.mu.Unlock()
	q.written.Add(1)     // the peer has as long as any to take this, however long ago it took something
	q.kick <- struct{}{} // there is one writer, so there is room
}

// drain writes until the queue is empty. The caller is the writer.
func (q *outQueue) drain() {
	for {
		if q.done == len(q.out) || q.err != nil {
			q.finish()
			q.mu.Lock()
			if q.err != nil && q.write != writeBroken {
				writeLife.Move(&q.write, writeBroken)
			}
			if len(q.queue) == 0 {
				if q.err == nil {
					writeLife.Move(&q.write, writeNone)
				}
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
		if !q.writeBatch() {
			q.handOver()
			return
		}
	}
}

// gather lists the pieces of the batch.
func (q *outQueue) gather() {
	q.out, q.done = q.out[:0], 0
	for _, sc := range q.batch {
		c := &sc.call
		q.out = append(q.out, piece{b: sc.mark[:]}, piece{b: c.before()})
		if c.payload > 0 {
			left := c.payload
			if sc.loan != nil {
				q.out = append(q.out, piece{loan: sc})
			}
			for _, b := range c.sink {
				b = b[:min(len(b), left)]
				if left -= len(b); len(b) > 0 {
					q.out = append(q.out, piece{b: b})
				}
			}
			if p := xdr.Pad(c.payload); p > 0 {
				q.out = append(q.out, piece{b: sc.trailer[:p]})
			}
		}
		if b := c.behind(); len(b) > 0 {
			q.out = append(q.out, piece{b: b})
		}
	}
}

// finish releases the batch.
func (q *outQueue) finish() {
	clear(q.out)
	q.out, q.done = q.out[:0], 0
	for i, c := range q.batch {
		q.batch[i] = nil
		q.c.s.stats.bytesOut.Add(uint64(len(c.call.Out) + max(c.call.payload, 0)))
		c.drop()
	}
	q.batch = q.batch[:0]
}

// writeBatch writes the batch, and reports false when the socket takes no more and the writer may not wait.
func (q *outQueue) writeBatch() bool {
	if q.c.raw == nil {
		if q.write != writeApart {
			return false
		}
		for ; q.done < len(q.out); q.done++ {
			if _, err := q.c.nc.Write(q.out[q.done].b); err != nil { // a stream without a descriptor is lent nothing
				q.fail(err)
				return true
			}
			q.written.Add(1)
		}
		return true
	}
	if err := q.c.raw.Write(q.try); err != nil {
		q.fail(err)
	} else if q.err != nil {
		q.fail(q.err)
	}
	return q.err != nil || q.done == len(q.out)
}

// fail ends the connection: a record that is half written cannot be taken back.
func (q *outQueue) fail(err error) {
	q.err = err
	q.broken.Store(true)
	q.c.die()
	_ = q.c.nc.Close()
}

// writeTo is the function that raw.Write calls with the descriptor: false makes it wait until there is room. An error is
// left in q.err: closing here would wait for the descriptor that this function holds.
func (q *outQueue) writeTo(fd uintptr) bool {
	for q.done < len(q.out) {
		var e syscall.Errno
		if c := q.out[q.done].loan; c != nil {
			e = q.sendLoan(fd, c)
		} else {
			e = q.sendBytes(fd)
		}
		switch e {
		case 0, syscall.EINTR:
		case syscall.EAGAIN:
			return q.write != writeApart
		default:
			q.err = e
			return true
		}
	}
	return true
}

// took notes for the watch that the peer took something.
func (q *outQueue) took() {
	if q.write == writeApart {
		q.written.Add(1)
	}
}

// sendBytes sends what lies in memory before the next loan, or a part of it.
func (q *outQueue) sendBytes(fd uintptr) syscall.Errno {
	q.iovs = q.iovs[:0]
	flags := 0
	for i := q.done; i < len(q.out) && len(q.iovs) < maxIovecs; i++ {
		b := q.out[i].b
		if q.out[i].loan != nil {
			flags = unix.MSG_MORE // a reply's header goes into the segment that its data begins
			break
		}
		q.iovs = sockio.Append(q.iovs, b)
	}
	n, e := 0, syscall.Errno(0)
	if len(q.iovs) > 0 {
		n, e = sockio.Sendv(fd, q.iovs, flags)
	}
	if e != 0 {
		return e
	}
	q.took()
	for left := n; left > 0; {
		p := &q.out[q.done]
		if left < len(p.b) {
			p.b = p.b[left:]
			break
		}
		left -= len(p.b)
		q.done++
	}
	for q.done < len(q.out) && len(q.out[q.done].b) == 0 && q.out[q.done].loan == nil {
		q.done++
	}
	return 0
}

// sendLoan sends from the pipe of a loan. A socket that takes no pages is sent what they hold.
func (q *outQueue) sendLoan(fd uintptr, c *streamCall) syscall.Errno {
	p := c.loan
	n, e := q.c.s.splice(p.r, fd, p.left, q.done+1 < len(q.out))
	switch {
	case e == 0 && n == 0:
		return unix.EIO // less in the pipe than was put there
	case e == 0:
		q.c.s.stats.bytesLent.Add(uint64(n))
		q.took()
		if p.left -= n; p.left == 0 {
			q.done++
		}
	case refused(e):
		q.c.pipes.off.Store(true)
		c.plain = getBytes(p.left)
		c.hold(len(*c.plain))
		b := (*c.plain)[:p.left]
		if err := p.take(b); err != nil {
			return unix.EIO
		}
		q.c.s.stats.copiedOut.add(c.call.payload, len(b))
		q.out[q.done] = piece{b: b}
		return 0
	}
	return e
}
