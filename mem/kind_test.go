package mem

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// What another process gets of a Shared slab can be read, and neither written nor cut short, by whatever means.
func TestASharedSlabIsSealed(t *testing.T) {
	s, err := Shared.NewSlab(5000)
	if err != nil {
		t.Fatal(err)
	}
	if s.Kind() != Shared || len(s.Bytes()) != 2*PageSize {
		t.Fatalf("a slab of %d bytes, kind %d", len(s.Bytes()), s.Kind())
	}
	fd := s.FD()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size != 2*PageSize || st.Blocks*512 != 2*PageSize {
		t.Errorf("the file has %d bytes, %d of them there (%v)", st.Size, st.Blocks*512, err)
	}
	there, err := unix.Mmap(fd, 0, 2*PageSize, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	s.Bytes()[4999] = 7
	if there[4999] != 7 {
		t.Error("a write here is not seen there")
	}
	if err := unix.Mprotect(there, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("a mapping to read can be made one to write")
	}
	if b, err := unix.Mmap(fd, 0, PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("it can be mapped to write", unix.Munmap(b))
	}
	for what, err := range map[string]error{
		"cut short":  unix.Ftruncate(fd, PageSize),
		"grown":      unix.Ftruncate(fd, 3*PageSize),
		"made empty": unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, PageSize),
	} {
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("it can be %s: %v", what, err)
		}
	}
	if n, err := unix.Pwrite(fd, []byte{1}, 0); n == 1 || err == nil {
		t.Errorf("it can be written: %d, %v", n, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if there[4999] != 7 {
		t.Error("the reader's mapping lost its pages")
	}
	if err := unix.Munmap(there); err != nil {
		t.Error(err)
	}
	if err := unix.Fstat(fd, &st); !errors.Is(err, unix.EBADF) {
		t.Errorf("the descriptor of a closed slab: %v", err)
	}
}

func TestAPoolOfAKindHasSlabsOfIt(t *testing.T) {
	for _, k := range []Kind{Private, Shared} {
		p := k.NewPool(0)
		b, err := p.Get(100)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Span().Slab.Kind(); got != k {
			t.Errorf("a pool of kind %d has a slab of kind %d", k, got)
		}
		b.Release()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, k := range []Kind{Private, Shared} {
		if _, err := k.NewSlab(0); err == nil {
			t.Errorf("kind %d: a slab of no bytes", k)
		}
	}
}
