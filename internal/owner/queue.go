package owner

import (
	"errors"
	"slices"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// queue is what waits to be posted to one queue pair. The connection's lock guards it.
type queue struct {
	recvs []transport.Recv // to be posted before the Sends that grant the peer their use
	sends []transport.WR   // Sends and Writes, in order
	bytes int              // of payload in sends
	reads []read           // RDMA Reads; they leave behind the Sends and Writes, within the depth
	out   int              // Reads under way: posted, or in a Post
	begun uint64           // how often out was no longer 0
	depth int              // how many Reads may be under way

	poster posterState
	life   queueState
	idle   chan struct{} // closed when the poster ends, for Drain

	// Of the goroutine that posts:
	spare []transport.WR
	spans []mem.Span
}

// read is an RDMA Read that waits.
type read struct {
	token uint64
	from  transport.Remote
	to    mem.Span
}

// SendLocked queues Sends and Writes behind those that wait. payload is how many bytes of data they bear; it returns how many
// wait now. Nothing is queued when the connection is over.
func (e *Engine[W]) SendLocked(payload int, wrs ...transport.WR) (waiting int) {
	if e.life != queueOver {
		e.sends = append(e.sends, wrs...)
		e.bytes += payload
	}
	return e.bytes
}

// ReadLocked queues an RDMA Read. It completes with token, signaled; ReadEndedLocked is to be called for it then.
func (e *Engine[W]) ReadLocked(token uint64, from transport.Remote, to mem.Span) {
	if e.life != queueOver {
		e.reads = append(e.reads, read{token, from, to})
	}
}

// ReadEndedLocked counts a Read that has completed, with or without success.
func (e *Engine[W]) ReadEndedLocked() { e.out-- }

// ReadRoomLocked is how many more Reads can be under way than there are already, those that wait included.
func (e *Engine[W]) ReadRoomLocked() int { return e.depth - e.out - len(e.reads) }

// ReadsLocked is how many Reads are under way, and how often some have begun to be.
func (e *Engine[W]) ReadsLocked() (out int, begun uint64) { return e.out, e.begun }

// RecvLocked queues a receive, to be posted before what is queued already or is queued until then.
func (e *Engine[W]) RecvLocked(r transport.Recv) { e.recvs = append(e.recvs, r) }

// EmptyLocked reports that nothing waits to be posted, nor is being posted.
func (e *Engine[W]) EmptyLocked() bool {
	return len(e.sends)+len(e.reads) == 0 && e.poster == posterNone
}

// TrimLocked gives back the memory of queues that are empty.
func (e *Engine[W]) TrimLocked() {
	if e.EmptyLocked() && len(e.recvs) == 0 {
		e.recvs, e.sends, e.reads, e.spare, e.spans = nil, nil, nil, nil, nil
	}
}

// StopLocked keeps anything more from being posted. What waits is abandoned by Drain.
func (e *Engine[W]) StopLocked() {
	if e.life == queueOpen {
		queueLife.Move(&e.life, queueStopped)
	}
}

// dueLocked reports whether what waits leaves although the owner will be back soon; doc.go has the reason.
func (e *Engine[W]) dueLocked() bool {
	peak := e.h.PeakLocked()
	return len(e.sends) >= min(MaxTogether, (peak+1)/2) || len(e.reads) > 0 && 4*e.out <= peak
}

// FlushLocked posts what waits, and Reads as far as the depth allows. Where another goroutine is posting, that one posts it. The
// lock is not held during Post.
func (e *Engine[W]) FlushLocked() {
	switch e.poster {
	case posterThere:
		posterLife.Move(&e.poster, posterAgain)
		return
	case posterAgain:
		return
	case posterNone:
		posterLife.Move(&e.poster, posterThere)
	}
	for e.postableLocked() {
		if e.poster == posterAgain {
			posterLife.Move(&e.poster, posterThere)
		}
		err := e.postRecvsLocked()
		if err == nil {
			err = e.postLocked()
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, transport.ErrQueueFull), errors.Is(err, transport.ErrTooManyReads):
			// Completions make room, and the owner flushes after each Poll. It may have been here already.
			if e.poster == posterAgain {
				continue
			}
		default:
			e.StopLocked()
			e.h.FailedLocked(err)
		}
		break
	}
	posterLife.Move(&e.poster, posterNone)
	if e.idle != nil {
		close(e.idle)
		e.idle = nil
	}
}

func (e *Engine[W]) postableLocked() bool {
	return e.life == queueOpen && e.QP != nil && (len(e.sends) > 0 || len(e.reads) > 0 && e.out < e.depth)
}

// postRecvsLocked posts the receives. What PostRecv does not take stays, and the Sends that grant their use with it.
func (e *Engine[W]) postRecvsLocked() error {
	if len(e.recvs) == 0 {
		return nil
	}
	n, err := e.QP.PostRecv(e.recvs)
	e.recvs = slices.Delete(e.recvs, 0, n)
	return err
}

// postLocked posts Sends, Writes and Reads, without the lock, and has it again when it returns.
func (e *Engine[W]) postLocked() error {
	batch := e.takeLocked()
	e.mu.Unlock()
	n, err := e.QP.Post(batch)
	e.mu.Lock()
	e.backLocked(batch[n:])
	clear(batch)
	e.spare = batch[:0]
	return err
}

// takeLocked takes what is to be posted next off the queue.
func (e *Engine[W]) takeLocked() []transport.WR {
	batch := e.sends
	e.sends, e.bytes = e.spare[:0], 0
	k := max(0, min(len(e.reads), e.depth-e.out))
	if k == 0 {
		return batch
	}
	e.spans = slices.Grow(e.spans[:0], k)
	for i := range e.reads[:k] {
		r := &e.reads[i]
		e.spans = append(e.spans, r.to)
		batch = append(batch, transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: r.token, Local: e.spans[i : i+1 : i+1], Remote: r.from})
	}
	if e.out == 0 {
		e.begun++
	}
	e.out += k
	e.reads = slices.Delete(e.reads, 0, k)
	return batch
}

// backLocked puts what Post did not take before what was queued meanwhile.
func (e *Engine[W]) backLocked(rest []transport.WR) {
	if len(rest) == 0 {
		return
	}
	sends := len(rest)
	for sends > 0 && rest[sends-1].Op == transport.OpRead {
		sends--
	}
	e.sends = slices.Insert(e.sends, 0, rest[:sends]...)
	for i, wr := range rest[sends:] {
		e.reads = slices.Insert(e.reads, i, read{wr.Token, wr.Remote, wr.Local[0]})
		e.out--
	}
	for _, wr := range rest[:sends] {
		if wr.Op == transport.OpWrite {
			for _, s := range wr.Local {
				e.bytes += s.Len
			}
		}
	}
}
