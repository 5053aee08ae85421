package block

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/mem"
)

// Op is what a Request asks for.
type Op uint8

// The operations of a Volume.
const (
	Read         Op = iota + 1 // READ (16) into Data
	Write                      // WRITE (16) of Data
	Flush                      // SYNCHRONIZE CACHE (16) of the whole volume
	Discard                    // UNMAP
	WriteZeroes                // WRITE SAME (16) of a block of zeroes; Unmap lets space be given back
	CompareWrite               // COMPARE AND WRITE: Data is written if the volume holds Compare
	Status                     // GET LBA STATUS into Extents
	Raw                        // CDB as it is
)

func (o Op) String() string {
	names := [...]string{"none", "read", "write", "flush", "discard", "write zeroes", "compare and write", "get LBA status", "raw command"}
	if int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Extent is one run of a Status answer, in bytes.
type Extent struct {
	Offset, Length int64
	Mapped         bool
}

// Request is one operation of a Volume. From Submit to Done it and the memory it names belong to the Volume; then it may
// be used again. Over iSER the memory of Data and Compare comes from the Initiator's pool, or from slabs that the fabric
// knows.
type Request struct {
	Op      Op
	FUA     bool // Write, WriteZeroes, CompareWrite: durable when complete
	Unmap   bool // WriteZeroes
	In      bool // Raw: Data is filled, not sent
	Offset  int64
	Length  int64 // bytes; for Read, Write and CompareWrite the sum of Data
	Data    []mem.Span
	Compare []mem.Span
	Extents []Extent // Status appends up to the capacity
	CDB     []byte   // Raw

	// Err is the outcome. With ErrMiscompare, Miss is the offset of the first difference from Offset, or -1 where the
	// target does not say. Transferred is what Raw moved, in bytes; Code is the SCSI status.
	Err         error
	Miss        int64
	Transferred int64
	Code        uint8
	// Done is called once, on any goroutine, and must not block. It may submit.
	Done func(*Request)
	// After, where it is set, is flushed after the Done of requests that end together and have the same: once for all of
	// them, on the same goroutine. It must not block either.
	After Flusher
	// Priv is the caller's.
	Priv any

	next      *Request
	seq       uint64
	issued    int64 // bytes for which commands have been made
	finished  int64 // bytes whose commands have ended well
	inflight  int   // commands out
	retries   int
	lostAt    time.Time // when the first session that ran it was lost
	span      int       // index into the data list of the next piece
	spanOff   int
	started   bool // every command of an operation without length is out
	sent      bool // a command has been given to a connection, whose end may leave its outcome unknown
	flushing  bool // WriteZeroes with FUA: the second step
	failed    error
	epoch     uint32 // losses of power that were known when its first command left
	mark      uint32 // Flush: the marks of its begin, and the losses known then
	born      uint32
	waiting   time.Time // since when the target has asked to wait
	timeouts  int
	fence     *path // not to be sent again before that path's commands are known to be over
	pin       *session
	cancelled atomic.Bool
	waiter    chan struct{}
}

// Flusher is told that no more requests end just now.
type Flusher interface{ Flush() }

// reset makes r ready for its first command, or for all of them once more.
func (r *Request) reset() {
	r.issued, r.finished, r.inflight, r.span, r.spanOff = 0, 0, 0, 0, 0
	r.started, r.flushing, r.failed, r.Transferred, r.Code = false, false, nil, 0, 0
	if r.Op == Status {
		r.Extents = r.Extents[:0]
	}
}

// begin makes r a new request without a waiter.
func (r *Request) begin() {
	r.reset()
	r.lostAt, r.waiting, r.timeouts = time.Time{}, time.Time{}, 0
	r.Err, r.Miss, r.retries, r.sent, r.fence, r.pin, r.waiter = nil, 0, 0, false, nil, nil, nil
	r.cancelled.Store(false)
}

// repeatable reports whether doing r twice is the same as doing it once.
func (r *Request) repeatable() bool { return r.Op != CompareWrite && r.Op != Raw }

// harmless reports whether a command of r that still runs at the target cannot hurt anyone.
func (r *Request) harmless() bool { return r.Op == Read || r.Op == Status || r.Op == Flush }

// asks reports whether r is a question whose answer tells the target that the initiator knows what the unit is now. Commands
// that it would otherwise refuse, because it shows another unit, would be executed behind the answer.
func (r *Request) asks() bool {
	return r.Op == Raw && len(r.CDB) > 0 && (r.CDB[0] == opInquiry || r.CDB[0] == opReportLUNs)
}

func (r *Request) whole() bool {
	switch r.Op {
	case Flush, Raw, Status, CompareWrite:
		return r.started
	}
	return r.issued == r.Length || r.flushing && r.started
}

// reqList is a queue of requests.
type reqList struct{ head, tail *Request }

func (l *reqList) push(r *Request) {
	r.next = nil
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
}

func (l *reqList) pushFront(r *Request) {
	if r.next = l.head; l.head == nil {
		l.tail = r
	}
	l.head = r
}

func (l *reqList) pop() *Request {
	r := l.head
	if r != nil {
		if l.head = r.next; l.head == nil {
			l.tail = nil
		}
		r.next = nil
	}
	return r
}

func (l *reqList) remove(r *Request) bool {
	var prev *Request
	for x := l.head; x != nil; prev, x = x, x.next {
		if x != r {
			continue
		}
		if prev == nil {
			l.head = x.next
		} else {
			prev.next = x.next
		}
		if l.tail == x {
			l.tail = prev
		}
		x.next = nil
		return true
	}
	return false
}

// insert puts r in the order of submission.
func (l *reqList) insert(r *Request) {
	if l.tail == nil || l.tail.seq < r.seq {
		l.push(r)
		return
	}
	if r.seq < l.head.seq {
		l.pushFront(r)
		return
	}
	x := l.head
	for x.next != nil && x.next.seq < r.seq {
		x = x.next
	}
	r.next, x.next = x.next, r
	if l.tail == x {
		l.tail = r
	}
}

func (l *reqList) take() reqList {
	t := *l
	*l = reqList{}
	return t
}

// complete calls Done of every request of the list.
func (l *reqList) complete() {
	var after Flusher
	for r := l.pop(); r != nil; r = l.pop() {
		if after != nil && after != r.After {
			after.Flush()
		}
		after = r.After // r may be in use again after its Done
		r.finish()
	}
	if after != nil {
		after.Flush()
	}
}

// alone completes one request.
func (r *Request) alone() {
	l := reqList{r, r}
	r.next = nil
	l.complete()
}

func (r *Request) finish() {
	if r.waiter != nil {
		w := r.waiter
		r.waiter = nil
		w <- struct{}{}
		return
	}
	r.Done(r)
}
