package ublk

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ring is an io_uring with entries of 128 bytes (io_uring_setup(2), IORING_SETUP_SQE128): what commands to a driver need.
// One goroutine uses it. What a command points to must stay where it is until its completion: memory outside the heap.
type ring struct {
	fd     int
	sq, cq []byte // mapped: head, tail, mask and indices
	sqes   []byte // mapped
	p      params

	sqTail  uint32
	pending uint32 // filled, not given to the kernel
}

// Numbers of include/uapi/linux/io_uring.h.
const (
	setupCQSize = 1 << 3
	setupSQE128 = 1 << 10
	featSingle  = 1 << 0 // both rings in one mapping
	enterGet    = 1 << 0
	offSQ       = 0
	offCQ       = 0x8000000
	offSQEs     = 0x10000000
	opNop       = 0
	opRead      = 22
	opURingCmd  = 46
	sqeSize     = 128
	cqeSize     = 16
)

type sqOffsets struct{ head, tail, mask, entries, flags, dropped, array, resv1, user, resv2 uint32 }
type cqOffsets struct{ head, tail, mask, entries, overflow, cqes, flags, resv1, user, resv2 uint32 }

// params is struct io_uring_params. The user address is two words here, which keeps the layout.
type params struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	resv                                                               [3]uint32
	sq                                                                 sqOffsets
	cq                                                                 cqOffsets
}

// sqe is struct io_uring_sqe with the 80 bytes of a command at its end.
type sqe struct {
	opcode, flags uint8
	ioprio        uint16
	fd            int32
	off           uint64 // of a command: the driver's operation in the low half
	addr          uint64
	len           uint32
	rwFlags       uint32
	user          uint64
	bufIndex      uint16
	personality   uint16
	spliceFD      int32
	cmd           [80]byte
}

type cqe struct {
	user  uint64
	res   int32
	flags uint32
}

// ErrNoRing says that the kernel gives no io_uring of the kind needed.
var ErrNoRing = errors.New("ublk: no io_uring with 128-byte entries (Linux 5.19; /proc/sys/kernel/io_uring_disabled must be 0)")

func newRing(entries int) (*ring, error) {
	r := &ring{fd: -1}
	r.p.flags, r.p.cqEntries = setupSQE128|setupCQSize, uint32(2*entries)
	fd, _, no := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(&r.p)), 0)
	if no != 0 {
		return nil, fmt.Errorf("%w: io_uring_setup: %w", ErrNoRing, no)
	}
	r.fd = int(fd)
	if r.p.features&featSingle == 0 {
		return nil, errors.Join(ErrNoRing, r.close())
	}
	size := max(r.p.sq.array+4*r.p.sqEntries, r.p.cq.cqes+cqeSize*r.p.cqEntries)
	var err error
	if r.sq, err = unix.Mmap(r.fd, offSQ, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err == nil {
		r.cq = r.sq
		r.sqes, err = unix.Mmap(r.fd, offSQEs, int(sqeSize*r.p.sqEntries), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ublk: map the ring: %w", err), r.close())
	}
	// Entry i of the array is always entry i of the submissions.
	for i := range r.p.sqEntries {
		*word(r.sq, r.p.sq.array+4*i) = i
	}
	r.sqTail = *word(r.sq, r.p.sq.tail)
	return r, nil
}

func word(b []byte, off uint32) *uint32 { return (*uint32)(unsafe.Pointer(&b[off])) }

func (r *ring) close() error {
	var errs []error
	if r.sqes != nil {
		errs = append(errs, unix.Munmap(r.sqes))
	}
	if r.sq != nil {
		errs = append(errs, unix.Munmap(r.sq))
	}
	return errors.Join(append(errs, unix.Close(r.fd))...)
}

// next returns a cleared entry, which counts as filled; nil if the ring is full.
func (r *ring) next() *sqe {
	head := atomic.LoadUint32(word(r.sq, r.p.sq.head))
	if r.sqTail+r.pending-head >= r.p.sqEntries {
		return nil
	}
	i := (r.sqTail + r.pending) & (r.p.sqEntries - 1)
	r.pending++
	e := (*sqe)(unsafe.Pointer(&r.sqes[i*sqeSize]))
	*e = sqe{}
	return e
}

// enter gives the kernel what is filled and waits for at least wait completions. An interruption is no error: less may be there.
func (r *ring) enter(wait int) error {
	tail := r.sqTail + r.pending
	atomic.StoreUint32(word(r.sq, r.p.sq.tail), tail)
	r.sqTail, r.pending = tail, 0
	for {
		todo := tail - atomic.LoadUint32(word(r.sq, r.p.sq.head))
		flags := uintptr(0)
		if wait > 0 {
			flags = enterGet
		}
		_, _, no := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(todo), uintptr(wait), flags, 0, 0)
		switch {
		case no == unix.EINTR && wait == 0, no == unix.EAGAIN, no == unix.EBUSY:
			continue
		case no == unix.EINTR:
			// Not all may have been taken.
		case no != 0:
			return os.NewSyscallError("io_uring_enter", no)
		}
		if atomic.LoadUint32(word(r.sq, r.p.sq.head)) == tail {
			return nil
		}
	}
}

// reap takes one completion, if there is one.
func (r *ring) reap() (cqe, bool) {
	head := word(r.cq, r.p.cq.head)
	h := *head // ours alone
	if h == atomic.LoadUint32(word(r.cq, r.p.cq.tail)) {
		return cqe{}, false
	}
	c := *(*cqe)(unsafe.Pointer(&r.cq[r.p.cq.cqes+cqeSize*(h&(r.p.cqEntries-1))]))
	atomic.StoreUint32(head, h+1)
	return c, true
}
