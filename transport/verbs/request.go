package verbs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/sluice-storage/sluice/transport"
)

// request is a connection request that waits for its answer.
type request struct {
	l    *listener
	id   handle
	ev   cmEvent
	peer transport.Peer

	mu       sync.Mutex
	answered bool
	gone     bool // the peer gave up
	timer    *time.Timer
}

// await bounds the time that the upper protocol has for its answer; the request is in the device's books until then.
func (r *request) await() {
	d := r.l.d
	r.mu.Lock()
	r.timer = time.AfterFunc(requestTime, func() {
		if d.enter() {
			defer d.wg.Done()
			r.refuse()
		}
	})
	r.mu.Unlock()
	d.mu.Lock()
	d.reqs[r] = struct{}{}
	d.mu.Unlock()
}

// claim makes the caller the one that answers.
func (r *request) claim() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return false
	}
	r.answered = true
	if r.timer != nil {
		r.timer.Stop()
	}
	d := r.l.d
	d.mu.Lock()
	delete(d.reqs, r)
	d.mu.Unlock()
	return true
}

// refuse answers no, if there was no answer yet.
func (r *request) refuse() {
	if r.claim() {
		_ = r.l.d.cm.refuse(r.id, nil) // the peer may be gone
	}
}

// hand prepares a request for the upper protocol; false means that it is none any more.
func (r *request) hand() bool {
	d := r.l.d
	if !d.enter() {
		return false // refused by Close
	}
	defer d.wg.Done()
	var w where
	var err error
	r.mu.Lock()
	over := r.answered || r.gone
	if !over {
		w, err = d.tab.Where(r.id) // under the lock: a refusal destroys the id
	}
	r.mu.Unlock()
	if over {
		r.refuse()
		return false
	}
	told := false
	if err == nil {
		var a *rnic
		if a, told, err = d.unused.adapterOf(d, w.Dev); err == nil {
			r.peer = peerOf(&r.ev, a, w)
			return true
		}
	}
	if !told {
		d.warn("a connection request was refused", err)
	}
	r.refuse()
	return false
}

// cmEvent takes the events of a request that has no answer: whatever it is, the peer has given up.
func (r *request) cmEvent(cmEvent) {
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
}

// Peer is what the request said.
func (r *request) Peer() transport.Peer { return r.peer }

// Reject refuses with private data.
func (r *request) Reject(private []byte) error {
	if !r.l.d.enter() {
		return transport.ErrClosed // Close has refused it
	}
	defer r.l.d.wg.Done()
	if !r.claim() {
		return errAnswered
	}
	if len(private) > maxPrivate {
		_ = r.l.d.cm.refuse(r.id, nil) // the error below is what counts
		return errPrivate(len(private))
	}
	return r.l.d.cm.refuse(r.id, private)
}

// Accept answers yes and connects tq.
func (r *request) Accept(ctx context.Context, tq transport.QP, p transport.ConnParams) error {
	d := r.l.d
	q, err := d.qpOf(tq)
	if !d.enter() {
		if err == nil {
			q.fail(transport.ErrClosed)
		}
		return transport.ErrClosed
	}
	defer d.wg.Done()
	if !r.claim() {
		if err == nil {
			q.fail(lost(errAnswered)) // by now, or it took too long
		}
		return errAnswered
	}
	if err == nil {
		if err = q.adopt(); err == nil {
			if err = r.accept(ctx, q, p); err != nil {
				q.fail(lost(err))
			}
			return err
		}
	}
	_ = d.cm.refuse(r.id, nil) // the error above is what counts
	return err
}

// accept makes the id q's, whose end destroys it.
func (r *request) accept(ctx context.Context, q *QP, p transport.ConnParams) error {
	d := r.l.d
	q.build.Lock()
	q.id, q.known = r.id, true
	d.cm.give(r.id, q)
	q.build.Unlock()
	r.mu.Lock()
	gone := r.gone
	r.mu.Unlock()
	err := q.with(func() error {
		if gone {
			return &LinkError{Reason: "the peer gave up before its request was answered"}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(p.Private) > maxPrivate {
			return errPrivate(len(p.Private))
		}
		w, err := d.tab.Where(r.id)
		if err != nil {
			return fmt.Errorf("verbs: the way of a connection request: %w", err)
		}
		if err := q.makeLocked(w); err != nil {
			return err
		}
		if err := d.timeAcks(r.id, q.a); err != nil {
			return err
		}
		in, out := q.a.reads(p.ReadsIn, p.ReadsOut)
		if r.peer.Named {
			in, out = uint8(min(int(in), r.peer.ReadsOut)), uint8(min(int(out), r.peer.ReadsIn))
		}
		q.depth = transport.Depth{In: int(in), Out: int(out)}
		if q.a.raises {
			q.depth.In = max(q.depth.In, r.peer.ReadsOut)
		}
		if err := d.tab.Accept(r.id, connParam{Private: p.Private, ResponderResources: in, InitiatorDepth: out, RNRRetry: *d.opt.RNRRetry}); err != nil {
			return fmt.Errorf("verbs: accept the connection of %s: %w", w.Remote, err)
		}
		// The peer may send from here on, and what it sends may be answered.
		q.objects.moveLocked(qpObjectMoves, live)
		return nil
	})
	if err != nil {
		return err
	}
	var remote netip.AddrPort
	if q.made() {
		remote = q.path.Remote
	}
	_, err = q.await(ctx, cmEstablished, remote, establish)
	return err
}
