// Package faultfs is a directory in memory, mounted by FUSE, whose calls fail on order and whose power can be cut: faults
// beneath the kernel, so that what is tested runs as it ships.
//
// Each file has a volatile cache. Of a block (FS.Tear) that was written since the last fsync a cut leaves the durable content or
// any later one, by chance and independently of its neighbours; a fsync that a cut meets is done in part. A size is
// durable with the next fsync. Names are durable at once.
package faultfs

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

const sector = 512 // of struct stat, and what is never torn

// Call is one call to the file system.
type Call struct {
	Name     string // open, create, write, fsync, truncate, allocate, unlink
	File     string // the name in the directory
	Off, Len int64
}

// FS is the file system.
type FS struct {
	Dir string // where it is mounted

	mu    sync.Mutex
	fault func(Call) syscall.Errno
	lie   func(Call) bool
	rng   *rand.Rand
	left  int // steps before an armed cut, -1 for none
	off   bool
	unit  int64 // what a cut leaves whole
	root  *dir
}

// Mount makes an empty directory for the length of the test; it skips where FUSE is not to be had.
func Mount(t testing.TB) *FS {
	t.Helper()
	need.FUSE(t)
	f, end, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// New mounts an empty file system on dir until end is called.
func New(at string) (f *FS, end func() error, err error) {
	f = &FS{Dir: at, left: -1, unit: sector, rng: rand.New(rand.NewPCG(1, 1))}
	f.root = &dir{fs: f}
	s, err := fs.Mount(at, f.root, &fs.Options{MountOptions: fuse.MountOptions{
		FsName: "faultfs", Name: "faultfs", MaxWrite: 1 << 20, DisableXAttrs: true, DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV,
	}})
	if err != nil {
		return nil, nil, err
	}
	return f, func() error { return unmount(s, at) }, nil
}

// unmount ends a mount, and the copies that other mount namespaces have of it: without MNT_FORCE the kernel would keep the
// connection, and Wait would wait, as long as they are there.
func unmount(s *fuse.Server, at string) error {
	if unix.Unmount(at, unix.MNT_FORCE) != nil { // an ordinary user, or a process that has not quite ended
		if err := s.Unmount(); err != nil {
			return err
		}
	}
	s.Wait()
	return nil
}

// Fault has fn asked before each call; what it answers is the call's outcome, unless that is 0. nil asks nothing. A write
// that fails has not been done.
func (f *FS) Fault(fn func(Call) syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fn
}

// Lie has fn asked before each write and fsync; those that it chooses succeed and do nothing. nil asks nothing.
func (f *FS) Lie(fn func(Call) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lie = fn
}

// Tear has a cut leave blocks of that many bytes whole, as a disk with physical blocks of that size does: 512, unless it is called
// before anything is written.
func (f *FS) Tear(unit int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unit = unit
}

// IsOff reports whether there is no power.
func (f *FS) IsOff() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.off
}

// CutAfter takes the power away after n more steps: blocks that become durable, and calls.
func (f *FS) CutAfter(n int, seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rng, f.left = rand.New(rand.NewPCG(seed, seed)), n
}

// Cut takes the power away: each call fails from now on.
func (f *FS) Cut(seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rng = rand.New(rand.NewPCG(seed, seed))
	f.cutLocked()
}

// Restore puts the power on again. All descriptors of before have to be closed.
func (f *FS) Restore() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off, f.left = false, -1
}

// begin takes the lock for one call, unless it has to fail.
func (f *FS) begin(c Call) syscall.Errno {
	f.mu.Lock()
	if f.off || !f.stepLocked() {
		f.mu.Unlock()
		return syscall.EIO
	}
	fault := f.fault
	if fault == nil {
		return 0
	}
	f.mu.Unlock()
	if errno := fault(c); errno != 0 {
		return errno
	}
	f.mu.Lock()
	return 0
}

// stepLocked reports whether there still is power.
func (f *FS) stepLocked() bool {
	if f.left == 0 {
		f.cutLocked()
		return false
	}
	if f.left > 0 {
		f.left--
	}
	return true
}

func (f *FS) cutLocked() {
	if f.off {
		return
	}
	f.off, f.left = true, -1
	all := f.root.Children()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n, ok := all[name].Operations().(*file); ok {
			n.cutLocked(f.rng)
		}
	}
}

type dir struct {
	fs.Inode
	fs *FS
}

var (
	_ fs.NodeCreater  = (*dir)(nil)
	_ fs.NodeUnlinker = (*dir)(nil)
	_ fs.NodeFsyncer  = (*dir)(nil)
)

// Create implements fs.NodeCreater.
func (d *dir) Create(ctx context.Context, name string, _ uint32, mode uint32, out *fuse.EntryOut) (*fs.Inode, fs.FileHandle, uint32, syscall.Errno) {
	if errno := d.fs.begin(Call{Name: "create", File: name}); errno != 0 {
		return nil, nil, 0, errno
	}
	defer d.fs.mu.Unlock()
	n := &file{fs: d.fs, name: name, mode: mode, pending: make(map[int64][][]byte)}
	child := d.NewPersistentInode(ctx, n, fs.StableAttr{Mode: fuse.S_IFREG})
	d.AddChild(name, child, true) // here, for a cut looks for it
	n.attrLocked(&out.Attr)
	return child, nil, 0, 0
}

// Unlink implements fs.NodeUnlinker.
func (d *dir) Unlink(_ context.Context, name string) syscall.Errno {
	if errno := d.fs.begin(Call{Name: "unlink", File: name}); errno != 0 {
		return errno
	}
	d.fs.mu.Unlock()
	return 0
}

// Fsync implements fs.NodeFsyncer.
func (d *dir) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	if errno := d.fs.begin(Call{Name: "fsync", File: "."}); errno != 0 {
		return errno
	}
	d.fs.mu.Unlock()
	return 0
}

type file struct {
	fs.Inode
	fs   *FS
	name string
	mode uint32

	durable, cached []byte
	pending         map[int64][][]byte // by block: contents newer than the durable one, oldest first
}

var (
	_ fs.NodeOpener    = (*file)(nil)
	_ fs.NodeGetattrer = (*file)(nil)
	_ fs.NodeSetattrer = (*file)(nil)
	_ fs.NodeReader    = (*file)(nil)
	_ fs.NodeWriter    = (*file)(nil)
	_ fs.NodeFsyncer   = (*file)(nil)
	_ fs.NodeFlusher   = (*file)(nil)
	_ fs.NodeAllocater = (*file)(nil)
)

func (n *file) attrLocked(a *fuse.Attr) {
	size := uint64(len(n.cached))
	a.Mode, a.Size, a.Blocks, a.Blksize = n.mode|fuse.S_IFREG, size, size/sector, 4096
}

func (n *file) cutLocked(rng *rand.Rand) {
	for _, s := range slices.Sorted(maps.Keys(n.pending)) { // in order, so that one seed gives one outcome
		if i := rng.IntN(len(n.pending[s]) + 1); i > 0 && s*n.fs.unit < int64(len(n.durable)) {
			copy(n.durable[s*n.fs.unit:], n.pending[s][i-1])
		}
	}
	clear(n.pending)
	n.cached = slices.Clone(n.durable)
}

// Open lets the kernel cache until the next open.
func (n *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.fs.begin(Call{Name: "open", File: n.name}); errno != 0 {
		return nil, 0, errno
	}
	n.fs.mu.Unlock()
	return nil, 0, 0
}

// Flush is close(2), which always works.
func (n *file) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }

// Getattr implements fs.NodeGetattrer.
func (n *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.fs.mu.Lock()
	defer n.fs.mu.Unlock()
	n.attrLocked(&out.Attr)
	return 0
}

// Setattr implements fs.NodeSetattrer.
func (n *file) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	size, ok := in.GetSize()
	if !ok {
		return n.Getattr(ctx, h, out)
	}
	if errno := n.fs.begin(Call{Name: "truncate", File: n.name, Off: int64(size)}); errno != 0 {
		return errno
	}
	defer n.fs.mu.Unlock()
	n.resizeLocked(int64(size))
	n.attrLocked(&out.Attr)
	return 0
}

func (n *file) resizeLocked(size int64) {
	if size <= int64(len(n.cached)) {
		n.cached = slices.Clone(n.cached[:size])
		return
	}
	n.cached = append(n.cached, make([]byte, size-int64(len(n.cached)))...)
}

// Read implements fs.NodeReader.
func (n *file) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := n.fs.begin(Call{Name: "read", File: n.name, Off: off, Len: int64(len(dest))}); errno != 0 {
		return nil, errno
	}
	defer n.fs.mu.Unlock()
	k := 0
	if off < int64(len(n.cached)) {
		k = copy(dest, n.cached[off:])
	}
	return fuse.ReadResultData(dest[:k]), 0
}

// Write implements fs.NodeWriter.
func (n *file) Write(_ context.Context, _ fs.FileHandle, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := n.fs.begin(Call{Name: "write", File: n.name, Off: off, Len: int64(len(data))}); errno != 0 {
		return 0, errno
	}
	defer n.fs.mu.Unlock()
	if n.fs.lie != nil && n.fs.lie(Call{Name: "write", File: n.name, Off: off, Len: int64(len(data))}) {
		return uint32(len(data)), 0
	}
	n.writeLocked(data, off)
	return uint32(len(data)), 0
}

func (n *file) writeLocked(data []byte, off int64) {
	end := off + int64(len(data))
	if end > int64(len(n.cached)) {
		n.resizeLocked(end)
	}
	copy(n.cached[off:], data)
	unit := n.fs.unit
	for s := off / unit; s*unit < end; s++ {
		n.pending[s] = append(n.pending[s], slices.Clone(n.cached[s*unit:min((s+1)*unit, int64(len(n.cached)))]))
	}
}

// Fsync implements fs.NodeFsyncer.
func (n *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	if errno := n.fs.begin(Call{Name: "fsync", File: n.name}); errno != 0 {
		return errno
	}
	defer n.fs.mu.Unlock()
	if n.fs.lie != nil && n.fs.lie(Call{Name: "fsync", File: n.name}) {
		return 0
	}
	if !n.fs.stepLocked() {
		return syscall.EIO
	}
	n.durable = slices.Grow(n.durable, max(len(n.cached)-len(n.durable), 0))
	old := min(len(n.durable), len(n.cached))
	n.durable = n.durable[:len(n.cached)]
	clear(n.durable[old:])
	dirty := slices.Sorted(maps.Keys(n.pending))
	n.fs.rng.Shuffle(len(dirty), func(i, j int) { dirty[i], dirty[j] = dirty[j], dirty[i] })
	for _, s := range dirty {
		if !n.fs.stepLocked() {
			return syscall.EIO
		}
		if at := s * n.fs.unit; at < int64(len(n.durable)) {
			copy(n.durable[at:], n.cached[at:min(at+n.fs.unit, int64(len(n.cached)))])
		}
		delete(n.pending, s)
	}
	return 0
}

// Allocate takes no room, for there is enough; a punched or zeroed range is a written one.
func (n *file) Allocate(_ context.Context, _ fs.FileHandle, off, size uint64, mode uint32) syscall.Errno {
	if errno := n.fs.begin(Call{Name: "allocate", File: n.name, Off: int64(off), Len: int64(size)}); errno != 0 {
		return errno
	}
	defer n.fs.mu.Unlock()
	end := int64(off + size)
	switch {
	case mode&^(unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0:
		return syscall.EOPNOTSUPP
	case mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0:
		if end = min(end, int64(len(n.cached))); end > int64(off) {
			n.writeLocked(make([]byte, end-int64(off)), int64(off))
		}
	case mode&unix.FALLOC_FL_KEEP_SIZE == 0 && end > int64(len(n.cached)):
		n.resizeLocked(end)
	}
	return 0
}
