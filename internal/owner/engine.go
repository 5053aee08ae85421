package owner

import (
	"context"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/transport"
)

// Handler is the protocol above an engine. W is its work that is kept for a turn of the owner's.
type Handler[W any] interface {
	// Completed handles completions. over says that the connection has ended: then they are accounted for, and nothing is begun.
	// Before that an error ends the connection, and all of wcs has been accounted for all the same.
	Completed(wcs []transport.WC, over bool) error
	// Perform does work that was kept. With over set it may drop it, and must not wait for a medium: Drain waits for it.
	Perform(w W, over bool)
	// PeakLocked is how many requests the peer lately had here at once.
	PeakLocked() int
	// RestLocked is told that the owner has no work and will wait: it flushes.
	RestLocked()
	// HandedOff is told, on the new owner, that the one before has taken too long. It flushes what waits for company.
	HandedOff()
	// LateLocked is told, on a goroutine that lost the connection in a piece of work, that this has ended. What it queued is for the
	// handler to flush, where the new owner may be asleep.
	LateLocked()
	// FailedLocked is told of an error of Post or PostRecv that no completion makes up for. It must not wait, and sees to it that the
	// queue pair is closed.
	FailedLocked(err error)
}

// Engine owns one connection. Its zero value is no engine: see Init.
type Engine[W any] struct {
	Poller
	h       Handler[W]
	mu      *sync.Mutex
	handoff Handoff
	ended   chan error // why the connection ended, from the last owner
	queue

	// Guarded by mu: the work that is kept, from next on.
	work []W
	next int
}

// Init makes an engine for h, whose lock mu is. The queue pair may be set later, under mu, before anything is posted to it.
func (e *Engine[W]) Init(h Handler[W], mu *sync.Mutex, qp transport.QP) {
	e.h, e.mu, e.QP = h, mu, qp
}

// Run returns when the connection has ended, and says why. Goroutines of its own are the owners: one of them may be in a piece of work
// for as long as a medium hangs, and the end does not wait for it. That costs a connection 2.3 KiB. The queue pair must be connected.
func (e *Engine[W]) Run(ctx context.Context) error {
	depth := e.QP.Depth().Out
	e.mu.Lock()
	e.depth = depth
	e.mu.Unlock()
	e.ended = make(chan error, 1)
	own := func() {
		if err, mine := e.loop(ctx); mine {
			e.ended <- err
		}
	}
	e.handoff.Init(BlockTime, func() {
		e.h.HandedOff()
		own()
	})
	defer e.handoff.Stop()
	go own()
	return <-e.ended
}

// loop is the owner's, until the connection ends or has another owner.
func (e *Engine[W]) loop(ctx context.Context) (err error, mine bool) {
	for wait := false; ; {
		wcs, err := e.Next(ctx, wait)
		if err == nil && len(wcs) > 0 {
			err = e.h.Completed(wcs, false)
		}
		if err != nil {
			return err, true
		}
		w, some := e.turn()
		if wait = !some; wait {
			continue
		}
		s := e.handoff.Enter()
		e.h.Perform(w, false)
		if !e.handoff.Leave(s) {
			e.mu.Lock()
			e.h.LateLocked()
			e.mu.Unlock()
			return nil, false
		}
	}
}

// turn posts what is due, which is everything before the owner waits, and returns the next work.
func (e *Engine[W]) turn() (w W, some bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.next == len(e.work):
		e.h.RestLocked()
	case e.dueLocked():
		e.FlushLocked()
	}
	if e.next == len(e.work) {
		return w, false
	}
	return e.takeWorkLocked(), true
}

// KeepLocked keeps work for the owner, who performs it in a later turn. It is called by the owner, or by others between
// Completed and RestLocked: an owner that waits does not look for work.
func (e *Engine[W]) KeepLocked(w W) {
	if len(e.work) == cap(e.work) && 2*e.next >= len(e.work) { // under load there may always be some work: its memory is used again
		e.work, e.next = slices.Delete(e.work, 0, e.next), 0
	}
	e.work = append(e.work, w)
}

// KeepOnceLocked is KeepLocked, but not of what was kept last and is still to be performed: work that stands for all that a device has
// begun comes with each part of it.
func KeepOnceLocked[W comparable](e *Engine[W], w W) {
	if e.next == len(e.work) || e.work[len(e.work)-1] != w {
		e.KeepLocked(w)
	}
}

func (e *Engine[W]) takeWorkLocked() W {
	var none W
	w := e.work[e.next]
	e.work[e.next] = none
	e.next++
	return w
}

// OverLocked reports that Drain has ended: nothing of the connection is under way, nor will be.
func (e *Engine[W]) OverLocked() bool { return e.life == queueOver }

// Drain ends the connection; doc.go says what it guarantees. It is called once, behind Run or instead of it, by the goroutine that
// made the connection.
func (e *Engine[W]) Drain(why transport.Reason) {
	e.performAll()
	if e.QP != nil {
		_ = e.QP.Close(why) // whatever it says, Poll tells the end
		e.mu.Lock()
		e.StopLocked()
		e.mu.Unlock()
		_ = e.Poller.Drain(e.account)
	}
	e.awaitPost()
	for e.abandon() {
	}
}

// performAll performs the work that the end of the connection has overtaken.
func (e *Engine[W]) performAll() {
	e.mu.Lock()
	for e.next < len(e.work) {
		w := e.takeWorkLocked()
		e.mu.Unlock()
		e.h.Perform(w, true)
		e.mu.Lock()
	}
	e.mu.Unlock()
}

// account takes completions of a connection that has ended, and performs what they led to.
func (e *Engine[W]) account(wcs []transport.WC) {
	_ = e.h.Completed(wcs, true) // it has ended already
	e.performAll()
}

// awaitPost waits for a Post that was begun before the end and can only fail now.
func (e *Engine[W]) awaitPost() {
	e.mu.Lock()
	e.StopLocked()
	var idle chan struct{}
	if e.poster != posterNone {
		idle = make(chan struct{})
		e.idle = idle
	}
	e.mu.Unlock()
	if idle != nil {
		<-idle
		// What that Post was given before the queue pair closed has completed since.
		_ = e.Poller.Drain(e.account)
	}
}

// abandon hands what was queued and never posted to the handler, which may queue more. It reports false when there was none, and
// nothing can be queued any more.
func (e *Engine[W]) abandon() bool {
	e.mu.Lock()
	sends, reads := e.sends, e.reads
	e.out += len(reads) // the handler counts each as ended
	e.sends, e.reads, e.recvs, e.bytes = nil, nil, nil, 0
	if len(sends)+len(reads) == 0 {
		queueLife.Move(&e.life, queueOver)
	}
	e.mu.Unlock()
	wcs := make([]transport.WC, 0, len(sends)+len(reads))
	for i := range sends {
		wcs = append(wcs, transport.WC{Token: sends[i].Token, Op: sends[i].Op, Err: transport.ErrClosed})
	}
	for i := range reads {
		wcs = append(wcs, transport.WC{Token: reads[i].token, Op: transport.OpRead, Err: transport.ErrClosed})
	}
	if len(wcs) > 0 {
		e.account(wcs)
	}
	return len(wcs) > 0
}
