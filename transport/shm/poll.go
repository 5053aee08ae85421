package shm

import (
	"context"
	"errors"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// Poll runs the engine and returns completions. Only the owner calls it.
func (q *QP) Poll(wc []transport.WC) (int, error) {
	if len(wc) == 0 {
		return 0, nil
	}
	if q.rxcq.Len() == 0 && q.life.up() {
		q.step()
	}
	n := 0
	for ; n < len(wc) && q.rxcq.Len() > 0; n++ {
		wc[n] = *q.rxcq.Pop()
		if wc[n].Op == transport.OpRecv {
			q.rqUsed.Add(-1)
		} else {
			q.sqUsed.Add(-1)
		}
	}
	if n < len(wc) && q.pending.Load() {
		q.pending.Store(false)
		n = q.drain(wc, n)
	}
	if n == 0 && q.life.dead() {
		if n = q.drain(wc, 0); n > 0 {
			return n, nil // completed between the look above and the end
		}
		return q.flush(wc)
	}
	return n, nil
}

// drain appends the transmitter's completions.
func (q *QP) drain(wc []transport.WC, n int) int {
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	for ; n < len(wc) && t.cq.Len() > 0; n++ {
		wc[n] = *t.cq.Pop()
		q.sqUsed.Add(-1)
	}
	if t.cq.Len() > 0 {
		q.pending.Store(true)
	}
	return n
}

// flush returns what was outstanding when the QP failed, and in the end the reason.
func (q *QP) flush(wc []transport.WC) (int, error) {
	t := &q.tx
	t.Lock()
	defer t.Unlock()
	n := 0
	add := func(op transport.Op, token uint64) {
		wc[n] = transport.WC{Token: token, Op: op, Err: t.err}
		n++
	}
	for n < len(wc) && t.sq.Len() > 0 {
		if m := t.sq.Pop(); m.op != transport.OpRead { // Reads are below
			add(m.op, m.token)
		}
	}
	for n < len(wc) && t.inval.Len() > 0 {
		add(transport.OpInvalidate, t.inval.Pop().token)
	}
	q.stags.Lock()
	for n < len(wc) && q.stags.reads.Len() > 0 {
		add(transport.OpRead, q.stags.reads.Pop().token)
	}
	q.stags.Unlock()
	q.rq.Lock()
	for n < len(wc) && q.rq.ring.Len() > 0 {
		add(transport.OpRecv, q.rq.ring.Pop().token)
	}
	q.rq.Unlock()
	if n > 0 {
		return n, nil
	}
	q.watch.Off()
	return 0, t.err
}

// yields reports whether Poll has something to say.
func (q *QP) yields() bool { return q.rxcq.Len() > 0 || q.pending.Load() || q.life.dead() }

// Wait parks the owner until Poll would yield. It runs the engine.
func (q *QP) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !q.life.wasUp() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-q.ready:
		}
		if !q.life.wasUp() {
			return nil // Poll says why
		}
	}
	q.watch.On(ctx)
	for {
		if q.yields() {
			return nil
		}
		q.step()
		if q.yields() {
			return nil
		}
		if q.look() {
			continue
		}
		err := q.rc.Read(q.parkFn)
		q.unpark()
		if q.yields() {
			return nil
		}
		if cerr := ctx.Err(); cerr != nil {
			return cerr
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			// A kick, perhaps a late one of an earlier parking. What kicked has made known why before.
			_ = q.file.SetReadDeadline(time.Time{})
		default:
			q.fail(ErrPeerGone, nil, false)
		}
	}
}

// park is what the runtime's poller runs: true ends the parking, or keeps it from beginning. The first call of a parking says in our
// region that the owner is to be rung, and looks once more; what it finds on the socket stays in the inbox.
func (q *QP) park(fd uintptr) bool {
	x := &q.rx
	q.eng.Lock() // who ends the connection closes what the inbox holds: see release
	defer q.leave()
	if x.parking || x.in.has || !q.life.up() {
		return true
	}
	// The end of the socket is seen here: the runtime forgets what it was told before the parking.
	for range maxControl {
		if !x.in.receive(fd) {
			return q.parksLocked()
		}
		if !x.in.bell() {
			return true
		}
	}
	return true
}

// parksLocked says that the owner parks. True means that there is something to do instead. eng is held.
func (q *QP) parksLocked() bool {
	q.waitsForLocked(true)
	return q.someLocked() || q.watch.Ended()
}

// unpark says that the owner is awake.
func (q *QP) unpark() {
	q.parked.Store(false)
	if !q.rx.parking {
		return
	}
	q.rx.parking = false
	q.eng.Lock()
	defer q.leave()
	if q.life.up() {
		q.own.park.Add(1) // even
	}
}

// leave is the owner's way out of the mappings.
func (q *QP) leave() {
	q.eng.Unlock()
	if q.life.dead() {
		q.release()
	}
}

// writeBell rings. A socket that is full rings already.
func writeBell(fd uintptr) {
	b := [1]byte{msgBell}
	for {
		_, _, e := unix.RawSyscall(unix.SYS_WRITE, fd, uintptr(unsafe.Pointer(&b[0])), 1)
		if e != unix.EINTR {
			return
		}
	}
}
