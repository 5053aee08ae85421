// Package threads keeps threads whose credentials change apart from those that use RDMA adapters. The kernel takes commands
// for an adapter only from threads with the very credentials (by pointer, ib_safe_file_access) that its node was opened
// with: one that has been another user for a moment, and is the old one again, is refused from then on.
package threads

import (
	"runtime"
	"sync/atomic"
	"time"
)

var apart atomic.Bool

// KeepApart is called before an adapter's nodes are opened.
func KeepApart() { apart.Store(true) }

// Apart says that adapters are in use: what changes the credentials of its thread does so by OnDedicated.
func Apart() bool { return apart.Load() }

// Dedicated threads wait for the next job, so many at most and for so long.
const (
	mostIdle = 16
	idleTime = 10 * time.Second
)

var (
	jobs = make(chan job)
	idle atomic.Int32
)

type job struct {
	f    func() error
	over chan<- outcome
}

type outcome struct {
	err      error
	panicked any
}

// OnDedicated runs f on a thread that serves nothing else: other calls of it at most, for which f leaves the thread as it was. A panic of
// f's is the caller's.
func OnDedicated(f func() error) error {
	over := make(chan outcome, 1)
	j := job{f, over}
	select {
	case jobs <- j: // to one that is idle
	default:
		go serve(j)
	}
	o := <-over
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}

// serve runs jobs on a thread of its own, which ends with it: it is never unlocked.
func serve(j job) {
	runtime.LockOSThread()
	for j.run() && Apart() { // elsewhere it is rare, and leaves nothing behind
		if !await(&j) {
			return
		}
	}
}

func (j *job) run() (ok bool) {
	var o outcome
	defer func() {
		o.panicked = recover()
		ok = o.panicked == nil
		j.over <- o
	}()
	o.err = j.f()
	return
}

// await takes the next job, if one comes while the thread is worth its keep.
func await(j *job) bool {
	defer idle.Add(-1)
	if idle.Add(1) > mostIdle {
		return false
	}
	t := time.NewTimer(idleTime)
	defer t.Stop()
	select {
	case *j = <-jobs:
		return true
	case <-t.C:
		return false
	}
}
