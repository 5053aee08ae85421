package mem

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Kind is what the memory of slabs is made of. A device says which it takes (transport.Caps.Memory).
type Kind uint8

const (
	// Private memory is this process's alone: anonymous pages. Every device but those that say otherwise takes it, and the other kind too.
	Private Kind = iota
	// Shared memory is a file of memory that another process may map, to read it and no more.
	Shared
)

// Seals are what a Shared slab's file is sealed with (fcntl(2), F_ADD_SEALS): it keeps its size, so that no access to a mapping of it
// raises SIGBUS, and no process can map or write it to change it but through the mapping that its maker has.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// NewSlab is the function NewSlab for memory of the kind.
func (k Kind) NewSlab(size int) (*Slab, error) {
	if k == Private {
		return NewSlab(size)
	}
	if size <= 0 {
		return nil, fmt.Errorf("mem: slab of %d bytes asked for", size)
	}
	size = (size + PageSize - 1) &^ (PageSize - 1)
	fd, err := memfd()
	if err != nil {
		return nil, fmt.Errorf("mem: make a file of memory: %w", err)
	}
	s, err := newShared(fd, size)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mem: share a slab of %d bytes: %w", size, err), unix.Close(fd))
	}
	return s, nil
}

// memfd makes a file that nothing can execute, where the kernel knows that (Linux 6.3).
func memfd() (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("sluice", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		return unix.MemfdCreate("sluice", flags)
	}
	return fd, err
}

// newShared maps the file before the seal that forbids another mapping to write by. All of its pages are there from the beginning: a page that a
// reader were the first to touch would be charged to the reader.
func newShared(fd, size int) (*Slab, error) {
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		return nil, err
	}
	b, err := syscall.Mmap(fd, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals); err != nil {
		return nil, errors.Join(err, syscall.Munmap(b))
	}
	return &Slab{id: slabIDs.Add(1), b: b, fd: fd}, nil
}

// NewPool is the function NewPool for slabs of the kind.
func (k Kind) NewPool(max int64) *Pool {
	p := NewPool(max)
	p.kind = k
	return p
}

// Kind is what the slab is made of.
func (s *Slab) Kind() Kind {
	if s.fd >= 0 {
		return Shared
	}
	return Private
}

// FD is the file of a Shared slab, open as long as the slab is; -1 for a Private one. It is to be passed to another process, and to be
// closed by Close alone.
func (s *Slab) FD() int { return s.fd }
