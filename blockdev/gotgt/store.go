package gotgt

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gostor/gotgt/pkg/api"
	"github.com/gostor/gotgt/pkg/scsi"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Register makes "name:path" a backend of gotgt: open gives the device for a path, and gotgt closes it. Register it
// before gotgt reads its configuration; gotgt's registry takes no lock.
func Register(name string, open func(path string) (blockdev.Device, error)) {
	scsi.RegisterBackingStore(name, func() (api.BackingStore, error) { return NewStore(open), nil })
}

// Store is a gotgt backing store on a blockdev.Device. Any goroutine may use it.
type Store struct {
	scsi.BaseBackingStore
	open func(path string) (blockdev.Device, error)

	mu  sync.Mutex
	dev blockdev.Device
}

var _ api.BackingStore = (*Store)(nil)

// memory is what all stores bounce through: gotgt's slices are not registered memory.
var memory = sync.OnceValue(func() *mem.Pool { return mem.NewPool(poolSize) })

// NewStore returns a store that takes its device from open.
func NewStore(open func(path string) (blockdev.Device, error)) *Store {
	return &Store{open: open}
}

func (s *Store) device() (blockdev.Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dev == nil {
		return nil, blockdev.ErrClosed
	}
	return s.dev, nil
}

// Open implements api.BackingStore.
func (s *Store) Open(_ *api.SCSILu, path string) error {
	d, err := s.open(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dev = d
	s.DataSize = uint64(d.Geometry().Size)
	return nil
}

// Close implements api.BackingStore.
func (s *Store) Close(*api.SCSILu) error {
	s.mu.Lock()
	d := s.dev
	s.dev = nil
	s.mu.Unlock()
	if d == nil {
		return nil
	}
	return d.Close()
}

// Init implements api.BackingStore; there is nothing to initialise.
func (s *Store) Init(*api.SCSILu, string) error { return nil }

// Exit implements api.BackingStore.
func (s *Store) Exit(*api.SCSILu) error { return nil }

// Size implements api.BackingStore.
func (s *Store) Size(*api.SCSILu) uint64 {
	d, err := s.device()
	if err != nil {
		return 0
	}
	return uint64(d.Geometry().Size)
}

// Read implements api.BackingStore. The result is the caller's.
func (s *Store) Read(offset, tl int64) ([]byte, error) {
	d, err := s.device()
	if err != nil {
		return nil, err
	}
	if size := d.Geometry().Size; offset < 0 || tl < 0 || offset > size || tl > size-offset {
		return nil, blockdev.ErrRange // before memory is taken for it
	}
	out := make([]byte, tl)
	err = pieces(d, blockdev.Read, offset, out)
	return out, err
}

// Write implements api.BackingStore. A write beyond the end is refused, where gotgt's own store grows the file.
func (s *Store) Write(b []byte, offset int64) error {
	d, err := s.device()
	if err != nil {
		return err
	}
	return pieces(d, blockdev.Write, offset, b)
}

// pieces moves b through registered memory, one piece at a time.
func pieces(d blockdev.Device, op blockdev.Op, off int64, b []byte) error {
	quota := memory().Quota(pieceSize)
	defer quota.Close()
	for len(b) > 0 {
		buf, err := wait(quota, min(len(b), pieceSize))
		if err != nil {
			return err
		}
		if op == blockdev.Write {
			copy(buf.Bytes(), b)
		}
		r := &blockdev.Request{Op: op, Offset: off, Length: int64(buf.Len()), Data: []mem.Span{buf.Span()}}
		err = blockdev.Do(context.Background(), d, r)
		n := buf.Len()
		if err == nil && op == blockdev.Read {
			copy(b, buf.Bytes())
		}
		buf.Release()
		if err != nil {
			return fmt.Errorf("blockdev/gotgt: %v of %d bytes at %d: %w", op, n, off, err)
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// wait is Get for a caller that may block, as gotgt's goroutines may.
func wait(quota *mem.Quota, n int) (*mem.Buf, error) {
	for {
		b, err := quota.Get(n)
		if !errors.Is(err, mem.ErrNoMemory) {
			return b, err
		}
		free := make(chan struct{})
		quota.Wait(func() { close(free) })
		<-free
	}
}

// DataSync implements api.BackingStore: a flush of the device, whatever the range.
func (s *Store) DataSync(_, _ int64) error {
	d, err := s.device()
	if err != nil {
		return err
	}
	return blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Flush})
}

// DataAdvise implements api.BackingStore; advice changes nothing that a caller could see.
func (s *Store) DataAdvise(int64, int64, uint32) error { return nil }

// Unmap implements api.BackingStore. A device that cannot discard keeps its blocks, which SBC-4 section 5.30 allows.
func (s *Store) Unmap(blocks []api.UnmapBlockDescriptor) error {
	d, err := s.device()
	if err != nil {
		return err
	}
	if !blockdev.Can(d, blockdev.Discard) {
		return nil
	}
	for _, b := range blocks {
		r := &blockdev.Request{Op: blockdev.Discard, Offset: int64(b.Offset), Length: int64(b.TL)}
		if err := blockdev.Do(context.Background(), d, r); err != nil {
			return fmt.Errorf("blockdev/gotgt: unmap of %d bytes at %d: %w", b.TL, b.Offset, err)
		}
	}
	return nil
}
