// Package blockdev is the contract between what serves blocks and what stores them, and the home of the engines.
// blockdevtest runs the rules below as cases on every engine.
//
// # Rules
//
//  1. Submit never blocks on the medium. Done is called exactly once for each request, on any goroutine, and may be
//     called before Submit returns (a cached read, an argument that is out of range).
//  2. Requests complete in any order. Two that overlap and are outstanding together take effect in some order; a caller
//     that cares waits.
//  3. A write that completed is seen by every read submitted after. It is durable only when FUA was set, or when a Flush
//     submitted after its completion has completed: that much survives SIGKILL and loss of power (SBC-4 section 4.14).
//     A device that lost a write before it was durable fails every Flush from then on, whichever request the medium told
//     of the loss, until it is opened again; LossReporter says what comes after that.
//  4. A request that failed may have taken effect in part, unless its comment says otherwise.
//  5. Offsets and lengths are multiples of Geometry.Logical; anything else, or a range beyond Geometry.Size, is ErrRange
//     and touches nothing.
package blockdev

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sluice-storage/sluice/mem"
)

// Device is a block device. All methods may be called by any goroutine. Close is called once, after the last
// completion, and returns when nothing of the device runs any more.
type Device interface {
	Geometry() Geometry
	Submit(*Request)
	Close() error
}

// Geometry describes a device. All sizes are bytes; Size and Generation may change while a device is open, the rest not.
type Geometry struct {
	Size        int64
	Logical     int   // logical block: 512 or 4096
	Physical    int   // physical block, a power of two times Logical
	OptimalIO   int   // preferred transfer, 0 for no preference
	DiscardUnit int   // granularity of Discard, 0 where Discard is not supported
	MaxDiscard  int64 // the longest single Discard, 0 for no limit
	// DiscardZeroes says that what Discard gave back reads as zeroes. Otherwise it reads as anything.
	DiscardZeroes bool
	ReadOnly      bool
	Rotational    bool
	Thin          bool   // unwritten ranges take no space and read as zeroes
	WriteThrough  bool   // there is no volatile cache: a write that completed is durable
	Generation    uint64 // counts changes of Size
	// AtomicUnit and AtomicMax say that Request.Atomic is to be had: for lengths and offsets in multiples of AtomicUnit, up
	// to AtomicMax bytes. Both are 0 where it is not.
	AtomicUnit int
	AtomicMax  int64
}

// Op is what a request asks for.
type Op uint8

// The operations of a Device. Every engine has Read, Write and Flush; the others answer ErrUnsupported where the
// medium cannot (Geometry.DiscardUnit and Capable tell).
const (
	Read Op = iota + 1
	Write
	Flush
	Discard      // the medium may give the range's space back; what it then reads as is Geometry.DiscardZeroes' to say
	WriteZeroes  // the range reads as zeroes; Unmap says whether space may be given back
	CompareWrite // Compare equals the medium: write Data, else ErrMiscompare and nothing written. Atomic for all requests
	Status       // fills Extents with what is mapped
)

func (o Op) String() string {
	names := [...]string{"none", "read", "write", "flush", "discard", "write zeroes", "compare and write", "status"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Request is one operation. It belongs to the device from Submit to Done; the submitter may use it again after that.
type Request struct {
	Op    Op
	FUA   bool // Write, WriteZeroes, CompareWrite: durable when complete
	Unmap bool // WriteZeroes: the range may be deallocated
	// Atomic, of Write: after a loss of power the medium has all of Data or nothing of it, and no read sees a part.
	// ErrUnsupported where Geometry.AtomicMax is 0.
	Atomic bool
	Offset int64
	Length int64      // bytes; for Read and Write the sum of Data
	Data   []mem.Span // the medium's bytes; contents are the caller's
	// Compare is CompareWrite's expectation, as long as Data.
	Compare []mem.Span
	// Extents is filled by Status up to its capacity, from Offset on, in order and without gaps.
	Extents []Extent
	// Deferrer, of Read and Write, may be offered the work; nil for a submitter that does none.
	Deferrer Deferrer

	Err  error          // the outcome, set before Done
	Miss int64          // with ErrMiscompare: offset in bytes of the first difference, from Offset
	Done func(*Request) // called once, on any goroutine; it must not block, and may submit
	// After, where it is set, is flushed behind Done: by an engine that ends several requests together (Ending) once for all of them
	// that have the same.
	After Flusher

	// Next is free for the engine while it owns the request. Priv is too, and an engine may find there at the next Submit
	// what it left: a submitter that fills a request again keeps it, so that nothing has to be made again, or leaves it nil.
	Next *Request
	Priv any
}

// Flusher is told that no more requests end just now. It must not block.
type Flusher interface{ Flush() }

// Extent is one run of a Status answer.
type Extent struct {
	Offset, Length int64
	Mapped         bool
}

// Deferrer is a submitter that can do a device's work itself, later: the data is then in its processor's cache, and no
// worker has to be woken.
type Deferrer interface {
	// Defer reports whether the submitter will call p.Perform(r), once and soon, from where it may block for a moment. The
	// device asks before it gives the request to a worker of its own. Defer itself does not block.
	//
	// r may also be the device's own, for all that it has begun and not handed to the kernel: one call does that for the requests of a
	// batch. It is offered with each of them, and while the call is still to come it is the same one.
	Defer(p Performer, r *Request) bool
}

// Performer is a Device, or a part of one, that offers work that hardly ever blocks to the request's Deferrer.
type Performer interface {
	// Perform does what Defer was asked for, and ends with Done, on this goroutine or later on another. Requests that have ended
	// meanwhile may be done too. A device that is closed does nothing.
	Perform(r *Request)
}

// Capable reports what a device can do beyond Read, Write and Flush; a Device without it can do nothing beyond.
type Capable interface {
	Can(Op) bool
}

// Resizable is a Device whose size can follow its medium while it is open.
type Resizable interface {
	// Refresh looks at the medium and reports whether Size changed.
	Refresh() (bool, error)
}

// Notifier is a Resizable that hears of changes of its medium while it is open.
type Notifier interface {
	// OnChange has f called after each change, in place of Refresh: f calls that. Calls come one after another, on a goroutine of the device's, and none
	// behind Close.
	OnChange(f func())
}

// Growable is a Device whose medium it can make larger itself.
type Growable interface {
	// Grow makes the medium size bytes long and the device with it. After an error both are as they were.
	Grow(size int64) error
	// Ungrow takes the last Grow back, before any request has used what it brought.
	Ungrow() error
}

// LossReporter is a Device that can have lost writes that it acknowledged.
type LossReporter interface {
	// Lost says why writes that were acknowledged before the device was opened are gone, nil where none are. It never
	// changes while the device is open, so that each initiator can be told. Where a Flush could not be told of the loss
	// before, the first one of this opening fails too.
	Lost() error
	// TakeLoss is for who knows whom to tell of Lost, and fails their flushes itself: none fails for it here any more. With noted that
	// is written down, and the next opening knows nothing of the loss.
	TakeLoss(noted bool)
}

// Identified is a Device that knows its medium from another one at the same place.
type Identified interface {
	// Identity is the medium's, whatever its name or path is. A copy is another medium.
	Identity() (string, error)
	// Distinct reports whether no other medium can have that identity: one that is known by its place only is not.
	Distinct() (bool, error)
}

// Settler is a Device whose medium may be long behind it.
type Settler interface {
	// Settle makes durable what was written, however long that takes while the medium gets on and ctx lasts. Where the medium stands
	// still it fails with ErrMedium, which is no loss: Flush goes on to wait. What is written meanwhile may have been passed over. What an
	// earlier opening lost is no failure of it.
	Settle(ctx context.Context) error
}

// Scrubber is a Device that keeps copies of data elsewhere than in the blocks.
type Scrubber interface {
	// Scrub overwrites all copies of what requests that are complete have written; blocks themselves are left alone.
	Scrub() error
}

// RangeCopier is a Device that can copy to another one without the data passing through this process: by sharing blocks,
// or within the kernel.
type RangeCopier interface {
	// CopyRange copies n bytes from from to at on to and returns how many it did; it may block. ErrUnsupported says that
	// the rest has to be read and written. A device that is closed meanwhile ends it with ErrClosed. What was copied is as durable
	// as a write without FUA.
	CopyRange(to Device, from, at, n int64) (int64, error)
}

// Cloner is a Device on a file that can share its blocks.
type Cloner interface {
	// Clone makes dst, an empty file of the same file system, share all blocks: one moment's content, in which no atomic
	// write and no CompareWrite is half done. ErrUnsupported where the file system cannot.
	Clone(dst *os.File) error
}

// Space is the room behind a thin device, in bytes.
type Space struct {
	Used      int64 // taken by this device
	Available int64 // left for it and for all that share the medium
}

// SpaceReporter is a thin Device that knows where it stands.
type SpaceReporter interface {
	Space() (Space, error)
}

// Explainer is a Device that can say how it does its work ("volume show" prints it).
type Explainer interface {
	// Path is a few words: "file, buffered, preadv2 RWF_NOWAIT inline, 8 workers".
	Path() string
}

// Queue is where a device's requests are while they wait for its medium.
type Queue struct {
	// Kernel says that they wait in the kernel (io_uring), so that the disk has as many at a time as initiators have; else each takes a
	// thread of the engine's, which has few.
	Kernel bool
	// Why is what keeps them from there; nil where they are there, or where that is not wanted.
	Why      error
	Requests uint64 // that were there
	Calls    uint64 // system calls that brought them
	Again    uint64 // of them, how many an engine's thread had to finish
	UnderWay int    // now
}

// QueueReporter is a Device that can say where its requests wait.
type QueueReporter interface {
	// Queue reports false where none of the device's requests wait for a medium.
	Queue() (q Queue, some bool)
}

// Errors that mean the same on every engine. Others are the operating system's, wrapped.
var (
	ErrRange       = errors.New("blockdev: request beyond the end of the device or not in whole blocks")
	ErrUnsupported = errors.New("blockdev: the device cannot do this")
	ErrReadOnly    = errors.New("blockdev: the device is read-only")
	ErrMiscompare  = errors.New("blockdev: the medium differs from what was expected")
	ErrClosed      = errors.New("blockdev: the device is closed")
	ErrMedium      = errors.New("blockdev: the medium failed")
	ErrNoSpace     = errors.New("blockdev: no space is left to write into")
	ErrBusy        = errors.New("blockdev: the medium is in use elsewhere")
	// ErrAway says that the medium did not answer in time. The request may have taken effect; it may be made again.
	ErrAway = errors.New("blockdev: the medium is away, and may come back")
	// ErrFenced says that the medium takes nothing from here any more, because another host has taken it over.
	ErrFenced = errors.New("blockdev: the medium has shut this host out")
)

// Can reports whether d supports op.
func Can(d Device, op Op) bool {
	switch op {
	case Read, Write, Flush:
		return true
	}
	c, ok := d.(Capable)
	return ok && c.Can(op)
}

// Do submits r and waits for it. The context bounds the wait only, never the operation: when it ends first, r and its
// memory still belong to the device. Done is overwritten.
func Do(ctx context.Context, d Device, r *Request) error {
	ch := make(chan error, 1)
	r.Done = func(r *Request) { ch <- r.Err }
	d.Submit(r)
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
