package ublk

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/attach/errno"
	"github.com/sluice-storage/sluice/mem"
)

// queue is one hardware queue. Its thread alone touches the ring; callbacks only append to ready.
type queue struct {
	d     *Device
	id    int
	r     *ring
	descs []byte // mapped from the driver, read only
	tags  []tag
	efd   int
	page  []byte // where the ring reads the eventfd into
	live  int    // tags that the driver has not ended
	began chan error

	mu     sync.Mutex
	ready  *tag
	asleep bool
	memory bool // what starving tags wait for can be had

	quota    *mem.Quota
	starving []*tag // wait for memory, the oldest first
}

// tag is one request of the queue's.
type tag struct {
	q     *queue
	n     int
	req   blockdev.Request
	buf   *mem.Buf
	spans [1]mem.Span
	res   int32
	next  *tag
	needs int  // bytes of memory that it waits for
	data  bool // for the data of a write, which the driver then copies
}

func newQueue(d *Device, id, depth int) (*queue, error) {
	q := &queue{d: d, id: id, efd: -1, began: make(chan error, 1), tags: make([]tag, depth)}
	for i := range q.tags {
		t := &q.tags[i]
		t.q, t.n = q, i
		t.req.Done = t.done
	}
	size := (depth*descSize + os.Getpagesize() - 1) &^ (os.Getpagesize() - 1)
	var err error
	if q.descs, err = unix.Mmap(int(d.char.Fd()), int64(id*maxQueueDepth*descSize), size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE); err != nil {
		return nil, fmt.Errorf("ublk: map the descriptors of queue %d: %w", id, err)
	}
	if q.efd, err = unix.Eventfd(0, unix.EFD_CLOEXEC); err == nil {
		q.page, err = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	}
	if err != nil {
		return nil, errors.Join(err, q.free())
	}
	return q, nil
}

func (q *queue) free() error {
	errs := []error{unix.Munmap(q.descs)}
	if q.efd >= 0 {
		errs = append(errs, unix.Close(q.efd))
	}
	if q.page != nil {
		errs = append(errs, unix.Munmap(q.page))
	}
	return errors.Join(errs...)
}

// run serves the queue until the driver has ended every tag. The driver wants all commands of a queue from one thread.
func (q *queue) run() (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := newRing(2*len(q.tags) + 2)
	if err != nil {
		q.began <- err
		return err
	}
	q.r = r
	defer func() { err = errors.Join(err, r.close()) }()
	q.quota = quotaOf(q.d.v.Memory(), len(q.tags), len(q.d.queues))
	defer q.quota.Close()
	for i := range q.tags {
		q.put(&q.tags[i], ioFetch, 0, 0)
	}
	q.arm()
	err = r.enter(0)
	q.began <- err
	q.live = len(q.tags)
	for err == nil && q.live > 0 {
		err = q.turn()
	}
	return err
}

// turn takes what the driver has, gives back what the volume has answered, and sleeps if there is neither.
func (q *queue) turn() error {
	for {
		c, ok := q.r.reap()
		if !ok {
			break
		}
		if c.user == uint64(len(q.tags)) {
			q.arm()
			continue
		}
		if err := q.take(&q.tags[c.user], c.res); err != nil {
			return err
		}
	}
	if q.live == 0 {
		return nil
	}
	q.mu.Lock()
	l, fed := q.ready, q.memory
	q.ready, q.memory = nil, false
	wait := 0
	if l == nil && !fed {
		wait, q.asleep = 1, true
	}
	q.mu.Unlock()
	if fed {
		q.feed()
	}
	for t := l; t != nil; t = t.next {
		var addr uint64
		if t.buf != nil {
			addr = address(t.buf)
		}
		q.put(t, ioCommit, addr, t.res)
	}
	err := q.r.enter(wait)
	if wait > 0 {
		q.mu.Lock()
		q.asleep = false
		q.mu.Unlock()
	}
	// The driver has copied what was read: it does so while it takes the entry.
	for t := l; t != nil; {
		next := t.next
		t.next = nil
		t.release()
		t = next
	}
	return err
}

func (t *tag) release() {
	if t.buf != nil {
		t.buf.Release()
		t.buf = nil
	}
}

func address(b *mem.Buf) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b.Bytes())))) }

// put fills an entry. There are two for each tag, which is more than can be out.
func (q *queue) put(t *tag, nr uint32, addr uint64, res int32) {
	e := q.r.next()
	op := nr
	if q.d.encoded {
		op = ioctl(nr, ioCmdSize)
	}
	e.opcode, e.fd, e.off, e.user = opURingCmd, int32(q.d.char.Fd()), uint64(op), uint64(t.n)
	ne.PutUint16(e.cmd[:], uint16(q.id))
	ne.PutUint16(e.cmd[2:], uint16(t.n))
	ne.PutUint32(e.cmd[4:], uint32(res))
	ne.PutUint64(e.cmd[8:], addr)
}

// arm has the ring read the eventfd, which completes when a callback wakes the thread.
func (q *queue) arm() {
	e := q.r.next()
	e.opcode, e.fd, e.addr, e.len, e.user = opRead, int32(q.efd), uint64(uintptr(unsafe.Pointer(&q.page[0]))), 8, uint64(len(q.tags))
}

// take handles the end of a tag's entry: a request is there, a write's data are, or the device ends.
func (q *queue) take(t *tag, res int32) error {
	switch res {
	case resOK:
	case resNeedData:
		t.needs, t.data = int(ne.Uint32(q.descs[t.n*descSize+4:]))<<9, true
		q.starve(t)
		return nil
	case -int32(unix.ENODEV):
		t.release()
		q.live--
		return nil
	default:
		return fmt.Errorf("ublk: queue %d, tag %d: the driver answers %w", q.id, t.n, unix.Errno(-res))
	}
	var d desc
	d.parse(q.descs[t.n*descSize:])
	r := &t.req
	r.Data = nil
	if !d.request(r) {
		t.fail(unix.EOPNOTSUPP)
		return nil
	}
	if r.Op == blockdev.Read || r.Op == blockdev.Write {
		if t.buf == nil {
			t.needs, t.data = int(r.Length), false
			q.starve(t)
			return nil
		}
		t.spans[0] = t.buf.Span()
		r.Data = t.spans[:]
	}
	q.d.v.Submit(r)
	return nil
}

// quotaOf is what a queue may hold: all queues leave half of the pool, which the volume needs to log in again.
func quotaOf(p *mem.Pool, tags, queues int) *mem.Quota {
	return p.Quota(max(mem.MaxBuf, min(int64(tags)*mem.MaxBuf, p.Stats().Max/2/int64(max(queues, 1)))))
}

// starve gives a tag its memory, in its turn: what is not there is waited for, never refused.
func (q *queue) starve(t *tag) {
	q.starving = append(q.starving, t)
	if len(q.starving) == 1 {
		q.feed()
	}
}

// feed gives memory to those that wait for it, as far as there is.
func (q *queue) feed() {
	for len(q.starving) > 0 {
		t := q.starving[0]
		buf, err := q.quota.Get(t.needs)
		switch {
		case errors.Is(err, mem.ErrNoMemory):
			q.quota.Wait(q.fed)
			return
		case err != nil:
			t.fail(unix.EIO)
		default:
			t.buf = buf
			if t.data {
				q.put(t, ioGetData, address(buf), 0)
			} else {
				t.spans[0] = buf.Span()
				t.req.Data = t.spans[:]
				q.d.v.Submit(&t.req)
			}
		}
		q.starving[0] = nil
		q.starving = q.starving[1:]
	}
	q.starving = nil
}

// fed is called when memory can be had, on any goroutine.
func (q *queue) fed() {
	q.mu.Lock()
	q.memory = true
	q.wakeLocked()
}

// fail answers a request that never reached the volume.
func (t *tag) fail(no unix.Errno) {
	t.res = -int32(no)
	t.q.answer(t)
}

// done is the volume's callback.
func (t *tag) done(r *blockdev.Request) {
	t.res = 0
	switch {
	case r.Err != nil:
		t.res = -int32(errno.Of(r.Err))
	case r.Op == blockdev.Read || r.Op == blockdev.Write:
		t.res = int32(r.Length)
	}
	t.q.answer(t)
}

func (q *queue) answer(t *tag) {
	q.mu.Lock()
	t.next, q.ready = q.ready, t
	q.wakeLocked()
}

// wakeLocked wakes the thread, and unlocks.
func (q *queue) wakeLocked() {
	wake := q.asleep
	q.asleep = false
	q.mu.Unlock()
	if wake {
		one := [8]byte{}
		ne.PutUint64(one[:], 1)
		_, _ = unix.Write(q.efd, one[:]) // fails only when the counter would overflow, and then it wakes anyway
	}
}
