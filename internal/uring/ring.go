package uring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is the memory that is shared with the kernel. It knows no lock: a Queue does.
type ring struct {
	fd    int
	event *os.File // signalled for completions; the runtime's poller has it

	rings, entries []byte // mappings

	sqHead, sqTail *uint32
	sqMask         uint32
	sqes           []sqe
	cqHead, cqTail *uint32
	cqMask         uint32
	cqes           []cqe
}

// floor is what a kernel must have: rings in one mapping, completions that are never dropped, arguments that are read at submission, and
// workers that are threads of the process, with its identity and limits. That is Linux 5.12.
const floor = featSingleMmap | featNoDrop | featSubmitStable | featNativeWorkers

// openRing makes a ring for up to entries operations at a time, a power of two.
func openRing(entries uint32) (*ring, error) {
	p := params{flags: setupClamp | setupSubmitAll}
	fd, errno := trySetup(entries, &p)
	if errno == unix.EINVAL { // before Linux 5.18 the rest of a batch waits for the next call, which Enter makes anyway
		p = params{flags: setupClamp}
		fd, errno = trySetup(entries, &p)
	}
	if errno != 0 {
		return nil, unavailable(errno)
	}
	r := &ring{fd: fd}
	var err error
	switch {
	case p.features&floor != floor:
		err = fmt.Errorf("%w: the kernel's is of before Linux 5.12 (features %#x)", ErrUnavailable, p.features)
	case p.sqEntries < entries || p.cqEntries < entries:
		err = fmt.Errorf("%w: the kernel gives %d entries, %d are needed", ErrUnavailable, p.sqEntries, entries)
	default:
		err = r.mapAll(&p)
	}
	if err == nil {
		err = r.signal()
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// trySetup is the system call. Tests have one that fails.
var trySetup = setup

func (r *ring) mapAll(p *params) error {
	size := max(p.sq.array+p.sqEntries*4, p.cq.cqes+p.cqEntries*uint32(unsafe.Sizeof(cqe{})))
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	var err error
	if r.rings, err = unix.Mmap(r.fd, offRing, int(size), prot, flags); err != nil {
		return fmt.Errorf("uring: map the rings: %w", err)
	}
	if r.entries, err = unix.Mmap(r.fd, offSQEs, int(p.sqEntries)*int(unsafe.Sizeof(sqe{})), prot, flags); err != nil {
		return fmt.Errorf("uring: map the entries: %w", err)
	}
	at := func(off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.rings[off])) }
	r.sqHead, r.sqTail, r.sqMask = at(p.sq.head), at(p.sq.tail), *at(p.sq.mask)
	r.cqHead, r.cqTail, r.cqMask = at(p.cq.head), at(p.cq.tail), *at(p.cq.mask)
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*cqe)(unsafe.Pointer(&r.rings[p.cq.cqes])), p.cqEntries)
	// The array between ring and entries is of no use here: place i is entry i, for ever.
	for i := range p.sqEntries {
		*at(p.sq.array + i*4) = i
	}
	return nil
}

// signal has completions signal an eventfd that the runtime's poller watches.
func (r *ring) signal() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("uring: eventfd: %w", err)
	}
	r.event = os.NewFile(uintptr(fd), "io_uring")
	n := int32(fd)
	if errno := register(r.fd, registerEventfd, unsafe.Pointer(&n), 1); errno != 0 {
		return fmt.Errorf("uring: register the eventfd: %w", errno)
	}
	return nil
}

// hush closes the eventfd, which ends who waits for it.
func (r *ring) hush() error {
	if r.event == nil {
		return nil
	}
	f := r.event
	r.event = nil
	return f.Close()
}

// close gives everything back. No operation is under way.
func (r *ring) close() error {
	errs := []error{r.hush()}
	for _, m := range [][]byte{r.rings, r.entries} {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}

// put writes an entry at tail, which the kernel sees with publish.
func (r *ring) put(tail uint32, e *sqe) { r.sqes[tail&r.sqMask] = *e }

func (r *ring) publish(tail uint32) { atomic.StoreUint32(r.sqTail, tail) }

// taken is the first entry that the kernel has not taken.
func (r *ring) taken() uint32 { return atomic.LoadUint32(r.sqHead) }

// ready is how far completions are there.
func (r *ring) ready() uint32 { return atomic.LoadUint32(r.cqTail) }

func (r *ring) completion(head uint32) cqe { return r.cqes[head&r.cqMask] }

// seen gives completions before head back to the kernel.
func (r *ring) seen(head uint32) { atomic.StoreUint32(r.cqHead, head) }
