package uring

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel's interface: linux/io_uring.h. Only what is used is here.

// sqe is struct io_uring_sqe of 64 bytes.
type sqe struct {
	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	rwFlags  uint32
	userData uint64
	bufIndex uint16
	_        uint16
	_        int32
	_        uint64
	_        uint64
}

// cqe is struct io_uring_cqe.
type cqe struct {
	userData uint64
	res      int32
	flags    uint32
}

type sqOffsets struct {
	head, tail, mask, entries, flags, dropped, array, _ uint32
	_                                                   uint64
}

type cqOffsets struct {
	head, tail, mask, entries, overflow, cqes, flags, _ uint32
	_                                                   uint64
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, cpu, idle, features, wqFD uint32
	_                                                      [3]uint32
	sq                                                     sqOffsets
	cq                                                     cqOffsets
}

// Sizes that the kernel checks, or that rings are laid out by.
var (
	_ [64]byte  = [unsafe.Sizeof(sqe{})]byte{}
	_ [16]byte  = [unsafe.Sizeof(cqe{})]byte{}
	_ [120]byte = [unsafe.Sizeof(params{})]byte{}
)

const (
	opNop   = 0
	opReadv = 1
	opWrite = 23
	opRead  = 22

	opWritev = 2

	setupClamp     = 1 << 4
	setupSubmitAll = 1 << 7 // Linux 5.18

	featSingleMmap    = 1 << 0
	featNoDrop        = 1 << 1
	featSubmitStable  = 1 << 2
	featNativeWorkers = 1 << 9

	registerEventfd = 4

	offRing = 0
	offSQEs = 0x10000000
)

func setup(entries uint32, p *params) (fd int, errno unix.Errno) {
	n, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(n), errno
}

// enter has the kernel take up to n entries; it waits for none of them. How many it has taken stands in the ring.
func enter(fd int, n uint32) unix.Errno {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(fd), uintptr(n), 0, 0, 0, 0)
	return errno
}

func register(fd int, what uintptr, arg unsafe.Pointer, n int) unix.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(fd), what, uintptr(arg), uintptr(n), 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}
