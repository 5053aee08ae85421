// Package threads keeps threads whose credentials change apart from those that use RDMA adapters. The kernel takes commands
// for an adapter only from threads with the very credentials (by pointer, ib_safe_file_access) that its node was opened
// with: one that has been another user for a moment, and is the old one again, is refused from then on.
package threads

import (
	"runtime"
	"sync/atomic"
)

var apart atomic.Bool

// KeepApart is called before an adapter's nodes are opened.
func KeepApart() { apart.Store(true) }

// Apart says that adapters are in use: what changes the credentials of its thread runs Alone.
func Apart() bool { return apart.Load() }

// Alone runs f on a thread that ends with it. A panic of f's is the caller's.
func Alone(f func() error) (err error) {
	over := make(chan any, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		defer func() { over <- recover() }()
		err = f()
	}()
	if p := <-over; p != nil {
		panic(p)
	}
	return err
}
