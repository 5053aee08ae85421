package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// postBatch is how many requests go with one doorbell.
const postBatch = 64

// sendQueue are the requests that the adapter has. Places are taken by Post and come back with completions, those of unsignaled
// requests with the next one. Reads stand apart: each has a completion, and siw completes what is posted behind a Read before it.
type sendQueue struct {
	sync.Mutex
	work, reads fifo
	readsIn     int    // of wrs
	quiet       int    // unsignaled requests since the last that was signaled
	every       int    // of them at most: so that a full queue always has a completion to come
	batch       uint32 // calls into the library so far, and one
	wrs         []sendWR
	sges        []sge
}

// fifo are requests that complete in the order of Post, oldest first. Post moves tail, under sq's lock; head moves under pollMu.
type fifo struct {
	tab        []sqEntry
	mask       uint32
	head, tail atomic.Uint32
}

func (f *fifo) init(n int) {
	size := pow2(n)
	f.tab, f.mask = make([]sqEntry, size), uint32(size-1)
}

func (f *fifo) at(seq uint32) *sqEntry { return &f.tab[seq&f.mask] }
func (f *fifo) out() int               { return int(f.tail.Load() - f.head.Load()) }

type sqEntry struct {
	token    uint64
	win      *window
	gen      uint32
	size     uint32
	op       transport.Op
	signaled bool // for the upper protocol
}

func (s *sendQueue) init(n int) {
	s.work.init(n + marker)
	s.reads.init(min(n, maxReads))
	s.every, s.batch = max(n/2, 1), 1
}

// out is how many requests the adapter has.
func (s *sendQueue) out() int { return s.work.out() + s.reads.out() }

// of is the entry of a request of the batch.
func (s *sendQueue) of(wr *sendWR) *sqEntry {
	if wr.ID&readID != 0 {
		return s.reads.at(uint32(wr.ID))
	}
	return s.work.at(uint32(wr.ID))
}

// room is how many more requests are taken. A completion that the owner has not taken keeps its place.
func (q *QP) room() int {
	return q.send - q.sq.out() - int(q.held.Load()) - len(q.sq.wrs)
}

// Post hands work requests to the adapter, many with one doorbell.
func (q *QP) Post(wrs []transport.WR) (int, error) {
	s := &q.sq
	s.Lock()
	defer s.Unlock()
	if q.dead() {
		return 0, q.why()
	}
	if !q.live() {
		return 0, errNotConnected
	}
	done, err := 0, error(nil)
	s.wrs, s.sges, s.readsIn = s.wrs[:0], s.sges[:0], 0
	for i := range wrs {
		var soft bool
		if s.boundIn(&wrs[i]) || len(s.wrs) == postBatch {
			k, rerr := q.ring()
			if done += k; rerr != nil {
				return done, rerr
			}
		}
		if soft, err = q.prepare(&wrs[i]); err != nil {
			break
		}
		if soft { // what stands before it starts before it
			k, rerr := q.ring()
			if done += k; rerr != nil {
				return done, rerr
			}
			q.softly(&wrs[i])
			done++
		}
	}
	k, rerr := q.ring()
	if rerr != nil {
		err = rerr
	}
	return done + k, err
}

// boundIn reports whether wr binds a window that the batch binds already: the library learns a window's key from a Bind
// when the call is over.
func (s *sendQueue) boundIn(wr *transport.WR) bool {
	if wr.Op != transport.OpBind {
		return false
	}
	w, ok := wr.Window.(*window)
	return ok && w.batch == s.batch
}

// prepare appends wr to the batch; soft says that the adapter has no part in it.
func (q *QP) prepare(wr *transport.WR) (soft bool, err error) {
	s := &q.sq
	if q.room() <= 0 {
		if q.reapLocked(); q.room() <= 0 {
			return false, transport.ErrQueueFull
		}
	}
	hw := sendWR{ID: uint64(s.work.tail.Load() + uint32(len(s.wrs)-s.readsIn))}
	if wr.Op == transport.OpRead {
		if len(wr.Local) > 1 {
			return false, errReadLocal
		}
		if s.reads.out()+s.readsIn >= q.depth.Out {
			return false, transport.ErrTooManyReads
		}
		hw.ID = readID | uint64(s.reads.tail.Load()+uint32(s.readsIn))
	}
	e := s.of(&hw)
	*e = sqEntry{token: wr.Token, op: wr.Op, signaled: wr.Flags&transport.Signaled != 0}
	if wr.Flags&transport.Fence != 0 && (wr.Op != transport.OpRead || !q.a.outOf) { // siw has no fenced Read, and its answers keep their order
		hw.Flags |= flagFence
	}
	if wr.Flags&transport.Solicited != 0 {
		hw.Flags |= flagSolicited
	}
	switch wr.Op {
	case transport.OpSend:
		hw.Op = wrSend
	case transport.OpSendInv:
		hw.Op, hw.Inv = wrSendInv, wr.Inv
	case transport.OpWrite:
		hw.Op, hw.RemoteAddr, hw.RKey = wrWrite, wr.Remote.Off, wr.Remote.STag
	case transport.OpRead:
		hw.Op, hw.RemoteAddr, hw.RKey = wrRead, wr.Remote.Off, wr.Remote.STag
	case transport.OpBind:
		if soft, err = q.bindLocked(wr, e, &hw); soft || err != nil {
			return soft, err
		}
	case transport.OpInvalidate:
		if soft, err = q.invalidateLocked(wr, e, &hw); soft || err != nil {
			return soft, err
		}
	default:
		return false, fmt.Errorf("verbs: work request with operation %d, which is none", wr.Op)
	}
	if wr.Op != transport.OpBind && wr.Op != transport.OpInvalidate {
		if err := q.gather(wr.Local, e, &hw); err != nil {
			return false, err
		}
	}
	if wr.Op == transport.OpRead {
		s.readsIn++
	}
	// A Read's place among the outstanding ones comes back only with its completion, so each has one.
	if s.quiet++; e.signaled || wr.Op == transport.OpRead || s.quiet >= s.every {
		hw.Flags |= flagSignaled
		s.quiet = 0
	}
	s.wrs = append(s.wrs, hw)
	return false, nil
}

// gather appends the pieces of local memory. Empty ones are left out: a length of 0 means 2 GiB to some adapters.
func (q *QP) gather(local []mem.Span, e *sqEntry, hw *sendWR) error {
	s := &q.sq
	known := q.dom.local.Load()
	mark, total := len(s.sges), 0
	for i := range local {
		if local[i].Len == 0 {
			continue
		}
		reg, err := q.dev.mem.local(q.dom, known, local[i])
		if err != nil {
			s.sges = s.sges[:mark]
			return err
		}
		total += local[i].Len
		s.sges = append(s.sges, sge{Addr: reg.addr + uint64(local[i].Off), Length: uint32(local[i].Len), LKey: reg.lkey})
	}
	c := &q.dev.caps
	if n := len(s.sges) - mark; n > c.MaxSGE || total > c.MaxMessage {
		s.sges = s.sges[:mark]
		return fmt.Errorf("verbs: a request of %d bytes in %d pieces; the adapter takes %d bytes in %d pieces", total, n, c.MaxMessage, c.MaxSGE)
	}
	hw.SGEs, e.size = uint16(len(s.sges)-mark), uint32(total)
	return nil
}

// ring posts the batch. What the adapter did not take has not been posted.
func (q *QP) ring() (int, error) {
	s := &q.sq
	n := len(s.wrs)
	if n == 0 {
		return 0, nil
	}
	s.batch++
	// Before the call: completions may come before it returns.
	s.work.tail.Add(uint32(n - s.readsIn))
	s.reads.tail.Add(uint32(s.readsIn))
	k, err := q.dev.tab.PostSend(q.hw, s.wrs, s.sges)
	if k < n {
		for i := n - 1; i >= k; i-- {
			q.undo(&s.wrs[i])
		}
		if err == nil {
			err = transport.ErrQueueFull
		}
		err = q.postErr(err)
		// The count of quiet requests may be of some that were not posted: the next one has a completion.
		s.quiet = s.every
	}
	s.wrs, s.sges, s.readsIn = s.wrs[:0], s.sges[:0], 0
	return k, err
}

// undo takes back what a request that was not posted has changed.
func (q *QP) undo(wr *sendWR) {
	e := q.sq.of(wr)
	if e.op == transport.OpRead {
		q.sq.reads.tail.Add(^uint32(0))
		return
	}
	q.sq.work.tail.Add(^uint32(0))
	switch e.op {
	case transport.OpBind:
		q.winMu.Lock()
		e.win.freeLocked()
		q.winMu.Unlock()
	case transport.OpInvalidate:
		q.winMu.Lock()
		e.win.state = winBound
		q.winMu.Unlock()
	}
}

// softly completes a request in which the adapter has no part.
func (q *QP) softly(wr *transport.WR) {
	if wr.Flags&transport.Signaled == 0 {
		return
	}
	q.pollMu.Lock()
	q.done = append(q.done, transport.WC{Token: wr.Token, Op: wr.Op})
	q.held.Add(1)
	q.pollMu.Unlock()
	q.notify()
}

// reapLocked takes completions from the adapter to where the owner finds them: what they free is free at once. sq is held. An
// owner that is parked wakes by their event.
func (q *QP) reapLocked() {
	q.pollMu.Lock()
	q.takeLocked()
	q.pollMu.Unlock()
}
