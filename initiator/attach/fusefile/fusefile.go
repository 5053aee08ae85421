// Package fusefile shows a volume as one file in a directory, by FUSE. It needs /dev/fuse and, for an ordinary user,
// fusermount3; the file can be loop-mounted, copied, or opened by any program.
package fusefile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/mem"
)

// Volume is what is shown: *block.Volume.
type Volume interface {
	Do(context.Context, *blockdev.Request) error
	Geometry() blockdev.Geometry
	Memory() *mem.Pool
}

// maxWrite is what the kernel sends in one request, bytes.
const maxWrite = 1 << 20

// Mounted is a mounted volume.
type Mounted struct {
	srv  *fuse.Server
	dir  string
	file *file
	gone chan struct{}
}

// Mount shows v as dir/name until it is unmounted, by Unmount or by another program. The volume must outlive it.
func Mount(dir, name string, v Volume, readOnly bool) (*Mounted, error) {
	root := &rootDir{name: name, file: &file{v: v, readOnly: readOnly || v.Geometry().ReadOnly, quota: v.Memory().Quota(math.MaxInt64), turn: make(chan struct{}, 1)}}
	opts := &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "sluice", Name: "sluice", MaxWrite: maxWrite, MaxReadAhead: maxWrite, DisableXAttrs: true, DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV,
	}}
	s, err := fs.Mount(dir, root, opts)
	if err != nil {
		// The library's words may end with a line's end.
		return nil, fmt.Errorf("mount by FUSE on %s: %s; it needs /dev/fuse and, for an ordinary user, fusermount3 (package fuse3)", dir, strings.TrimSpace(err.Error()))
	}
	m := &Mounted{srv: s, dir: dir, file: root.file, gone: make(chan struct{})}
	go func() {
		s.Wait()
		m.file.quota.Close()
		close(m.gone)
	}()
	if err := s.WaitMount(); err != nil {
		return nil, errors.Join(err, fusemount.Unmount(dir, true))
	}
	return m, nil
}

// Gone is closed when no mount namespace shows the volume any more.
func (m *Mounted) Gone() <-chan struct{} { return m.gone }

// Opens is how many open files there are, in whatever mount namespace.
func (m *Mounted) Opens() int { return int(m.file.opens.Load()) }

// leaveTime is how long the end of a mount that is nowhere else takes at most on a busy machine.
const leaveTime = 5 * time.Second

// Unmount takes the mount away: fusemount.ErrBusy if it is in use, unless it is lazy. Where another mount namespace has a copy, the
// end of this process ends that one.
func (m *Mounted) Unmount(lazy bool) error {
	select {
	case <-m.gone:
		return nil
	default:
	}
	if err := fusemount.Unmount(m.dir, lazy); err != nil {
		return err
	}
	t := time.NewTimer(leaveTime)
	defer t.Stop()
	select {
	case <-m.gone:
	case <-t.C:
	}
	return nil
}

type rootDir struct {
	fs.Inode
	name string
	file *file
}

var (
	_ fs.NodeOnAdder   = (*rootDir)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeFlusher   = (*file)(nil)
	_ fs.NodeAllocater = (*file)(nil)
	_ fs.NodeReleaser  = (*file)(nil)
)

func (r *rootDir) OnAdd(ctx context.Context) {
	r.AddChild(r.name, r.NewPersistentInode(ctx, r.file, fs.StableAttr{Mode: fuse.S_IFREG}), false)
}

// file is the volume. A write that does not cover whole blocks reads the others first, under edge, so that two such
// writes to one block cannot lose each other.
type file struct {
	fs.Inode
	v        Volume
	readOnly bool
	edge     sync.RWMutex
	opens    atomic.Int64
	quota    *mem.Quota    // half of the pool: the volume needs memory to log in again
	turn     chan struct{} // to wait for memory
}

// Getattr implements fs.NodeGetattrer.
func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	g := f.v.Geometry()
	out.Mode, out.Size, out.Blocks, out.Blksize = 0o600, uint64(g.Size), uint64(g.Size)/512, uint32(max(g.Physical, 4096))
	if f.readOnly {
		out.Mode = 0o400
	}
	return 0
}

// Setattr takes changes of times and modes without a trace, and refuses another size.
func (f *file) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok && int64(size) != f.v.Geometry().Size {
		return syscall.EPERM
	}
	return f.Getattr(ctx, h, out)
}

// Open lets the kernel cache: fsync reaches the volume, and other writers are not expected meanwhile.
func (f *file) Open(_ context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if f.readOnly && flags&(syscall.O_WRONLY|syscall.O_RDWR) != 0 {
		return nil, 0, syscall.EROFS
	}
	f.opens.Add(1)
	return opened{}, fuse.FOPEN_KEEP_CACHE, 0
}

// opened is an open file. The library tells of the end of those only that have a handle.
type opened struct{}

// Release implements fs.NodeReleaser.
func (f *file) Release(context.Context, fs.FileHandle) syscall.Errno {
	f.opens.Add(-1)
	return 0
}

// Read implements fs.NodeReader.
func (f *file) Read(ctx context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	n := min(int64(len(dest)), f.v.Geometry().Size-off)
	if n <= 0 {
		return fuse.ReadResultData(nil), 0
	}
	err := f.span(ctx, off, n, func(first int64, buf *mem.Buf, from, to int64) error {
		if err := f.do(ctx, &blockdev.Request{Op: blockdev.Read, Offset: first, Length: int64(buf.Len()), Data: []mem.Span{buf.Span()}}); err != nil {
			return err
		}
		copy(dest[from-off:to-off], buf.Bytes()[from-first:])
		return nil
	})
	return fuse.ReadResultData(dest[:n]), number(err)
}

// span calls g for each piece of whole blocks that covers [off, off+n): the piece begins at first, and holds [from, to).
func (f *file) span(ctx context.Context, off, n int64, g func(first int64, buf *mem.Buf, from, to int64) error) error {
	blk := int64(f.v.Geometry().Logical)
	end := off + n
	for off < end {
		first := off - off%blk
		last := min((end+blk-1)/blk*blk, first+mem.MaxBuf)
		buf, err := f.buffer(ctx, int(last-first))
		if err != nil {
			return err
		}
		to := min(end, last)
		err = g(first, buf, off, to)
		buf.Release()
		if err != nil {
			return err
		}
		off = to
	}
	return nil
}

// Write implements fs.NodeWriter.
func (f *file) Write(ctx context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	g := f.v.Geometry()
	if f.readOnly {
		return 0, syscall.EROFS
	}
	if off+int64(len(data)) > g.Size {
		return 0, syscall.ENOSPC
	}
	err := f.span(ctx, off, int64(len(data)), func(first int64, buf *mem.Buf, from, to int64) error {
		whole := from == first && to == first+int64(buf.Len())
		if whole {
			f.edge.RLock()
			defer f.edge.RUnlock()
		} else {
			f.edge.Lock()
			defer f.edge.Unlock()
			if err := f.do(ctx, &blockdev.Request{Op: blockdev.Read, Offset: first, Length: int64(buf.Len()), Data: []mem.Span{buf.Span()}}); err != nil {
				return err
			}
		}
		copy(buf.Bytes()[from-first:], data[from-off:to-off])
		return f.do(ctx, &blockdev.Request{Op: blockdev.Write, Offset: first, Length: int64(buf.Len()), Data: []mem.Span{buf.Span()}})
	})
	if err != nil {
		return 0, number(err)
	}
	return uint32(len(data)), 0
}

// Fsync makes durable what was written.
func (f *file) Fsync(ctx context.Context, _ fs.FileHandle, _ uint32) syscall.Errno {
	return number(f.do(ctx, &blockdev.Request{Op: blockdev.Flush}))
}

// Flush has nothing to do: close(2) promises no durability.
func (f *file) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }

// Allocate punches holes and writes zeroes (fallocate(2)); a loop device discards this way.
func (f *file) Allocate(ctx context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	g := f.v.Geometry()
	blk := uint64(g.Logical)
	if f.readOnly {
		return syscall.EROFS
	}
	if off%blk != 0 || size%blk != 0 || size == 0 {
		return syscall.EINVAL
	}
	if off > uint64(g.Size) || size > uint64(g.Size)-off {
		return syscall.ENOSPC
	}
	r := &blockdev.Request{Op: blockdev.WriteZeroes, Offset: int64(off), Length: int64(size)}
	switch {
	case mode&unix.FALLOC_FL_PUNCH_HOLE != 0:
		r.Unmap = true
	case mode&unix.FALLOC_FL_ZERO_RANGE != 0:
	case mode&^unix.FALLOC_FL_KEEP_SIZE == 0:
		return 0 // a volume's blocks are always there
	default:
		return syscall.EOPNOTSUPP
	}
	return number(f.do(ctx, r))
}
