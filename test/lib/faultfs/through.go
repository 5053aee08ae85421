package faultfs

import (
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// Short is what a fault answers to have a read or a write do half of what was asked.
const Short = syscall.Errno(1 << 20)

// Through is a directory that is seen by way of FUSE, all of whose calls can be made to fail: names, links, lists, locks.
type Through struct {
	Dir   string // where it is mounted: for other processes, this one serves it
	Below string // what is seen there

	mu    sync.Mutex
	fault func(Call) syscall.Errno
}

// MountThrough makes a directory for the length of the test. With writeback the kernel takes writes into its cache, and
// tells of those that failed at the next flush; else each write is the file system's.
func MountThrough(t testing.TB, writeback bool) *Through {
	t.Helper()
	need.FUSE(t)
	f := &Through{Dir: t.TempDir(), Below: t.TempDir()}
	root, err := fs.NewLoopbackRoot(f.Below)
	if err != nil {
		t.Fatal(err)
	}
	mo := fuse.MountOptions{FsName: "faultfs", Name: "faultfs", MaxWrite: 1 << 20, AllowOther: true, Options: []string{"default_permissions"},
		ExtraCapabilities: fuse.CAP_EXPORT_SUPPORT, EnableAcl: true, DirectMountStrict: true, DirectMountFlags: syscall.MS_NOSUID | syscall.MS_NODEV}
	if writeback {
		mo.ExtraCapabilities |= fuse.CAP_WRITEBACK_CACHE
	}
	syscall.ForkLock.RLock() // the library's descriptor is without O_CLOEXEC
	s, err := fuse.NewServer(&raw{RawFileSystem: fs.NewNodeFS(root, &fs.Options{MountOptions: mo}), f: f, writeback: writeback}, f.Dir, &mo)
	cerr := fusemount.KeepFromChildren()
	syscall.ForkLock.RUnlock()
	if cerr != nil {
		t.Fatal(cerr)
	}
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve()
	t.Cleanup(func() {
		if err := unmount(s, f.Dir); err != nil {
			t.Error(err)
		}
	})
	if err := s.WaitMount(); err != nil {
		t.Fatal(err)
	}
	return f
}

// Fault has fn asked before each call; what it answers is the call's outcome, unless that is 0: then the call is made. A
// call that fails has not been made. nil asks nothing.
func (f *Through) Fault(fn func(Call) syscall.Errno) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fn
}

func (f *Through) ask(c Call) fuse.Status {
	f.mu.Lock()
	fault := f.fault
	f.mu.Unlock()
	if fault == nil {
		return fuse.OK
	}
	return fuse.Status(fault(c))
}

// raw asks before each call that it hands on.
type raw struct {
	fuse.RawFileSystem
	f         *Through
	writeback bool
}

// at asks about a call by name.
func (r *raw) at(name string) fuse.Status { return r.f.ask(Call{Name: name}) }

// flags are those that a file is opened with below: with a cache of writes the kernel reads what it will write.
func (r *raw) flags(p *uint32) {
	if !r.writeback {
		return
	}
	if *p&syscall.O_ACCMODE == syscall.O_WRONLY {
		*p = *p&^syscall.O_ACCMODE | syscall.O_RDWR
	}
	*p &^= syscall.O_APPEND
}

func (r *raw) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.at("lookup"); s != 0 {
		return s
	}
	return r.RawFileSystem.Lookup(c, h, name, out)
}

func (r *raw) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := r.at("getattr"); s != 0 {
		return s
	}
	return r.RawFileSystem.GetAttr(c, in, out)
}

func (r *raw) Statx(c <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	if s := r.at("statx"); s != 0 {
		return s
	}
	return r.RawFileSystem.Statx(c, in, out)
}

func (r *raw) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if s := r.at("setattr"); s != 0 {
		return s
	}
	return r.RawFileSystem.SetAttr(c, in, out)
}

func (r *raw) Mknod(c <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.at("mknod"); s != 0 {
		return s
	}
	return r.RawFileSystem.Mknod(c, in, name, out)
}

func (r *raw) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.at("mkdir"); s != 0 {
		return s
	}
	return r.RawFileSystem.Mkdir(c, in, name, out)
}

func (r *raw) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := r.at("unlink"); s != 0 {
		return s
	}
	return r.RawFileSystem.Unlink(c, h, name)
}

func (r *raw) Rmdir(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := r.at("rmdir"); s != 0 {
		return s
	}
	return r.RawFileSystem.Rmdir(c, h, name)
}

func (r *raw) Rename(c <-chan struct{}, in *fuse.RenameIn, name, to string) fuse.Status {
	if s := r.at("rename"); s != 0 {
		return s
	}
	return r.RawFileSystem.Rename(c, in, name, to)
}

func (r *raw) Link(c <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.at("link"); s != 0 {
		return s
	}
	return r.RawFileSystem.Link(c, in, name, out)
}

func (r *raw) Symlink(c <-chan struct{}, h *fuse.InHeader, to, name string, out *fuse.EntryOut) fuse.Status {
	if s := r.at("symlink"); s != 0 {
		return s
	}
	return r.RawFileSystem.Symlink(c, h, to, name, out)
}

func (r *raw) Readlink(c <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	if s := r.at("readlink"); s != 0 {
		return nil, s
	}
	return r.RawFileSystem.Readlink(c, h)
}

func (r *raw) Access(c <-chan struct{}, in *fuse.AccessIn) fuse.Status {
	if s := r.at("access"); s != 0 {
		return s
	}
	return r.RawFileSystem.Access(c, in)
}

func (r *raw) GetXAttr(c <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if s := r.at("getxattr"); s != 0 {
		return 0, s
	}
	return r.RawFileSystem.GetXAttr(c, h, name, dest)
}

func (r *raw) SetXAttr(c <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	if s := r.at("setxattr"); s != 0 {
		return s
	}
	return r.RawFileSystem.SetXAttr(c, in, name, data)
}

func (r *raw) RemoveXAttr(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if s := r.at("removexattr"); s != 0 {
		return s
	}
	return r.RawFileSystem.RemoveXAttr(c, h, name)
}

func (r *raw) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if s := r.at("create"); s != 0 {
		return s
	}
	r.flags(&in.Flags)
	s := r.RawFileSystem.Create(c, in, name, out)
	ours(&out.OpenOut)
	return s
}

func (r *raw) Tmpfile(c <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	if s := r.at("tmpfile"); s != 0 {
		return s
	}
	r.flags(&in.Flags)
	s := r.RawFileSystem.Tmpfile(c, in, out)
	ours(&out.OpenOut)
	return s
}

func (r *raw) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s := r.at("open"); s != 0 {
		return s
	}
	r.flags(&in.Flags)
	s := r.RawFileSystem.Open(c, in, out)
	ours(out)
	return s
}

// ours has the kernel ask for each read and write, and not pass them to the file below by itself.
func ours(out *fuse.OpenOut) { out.OpenFlags, out.BackingID = out.OpenFlags&^fuse.FOPEN_PASSTHROUGH, 0 }

func (r *raw) Read(c <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	switch s := r.f.ask(Call{Name: "read", Off: int64(in.Offset), Len: int64(in.Size)}); {
	case s == fuse.Status(Short):
		in.Size /= 2
		buf = buf[:in.Size]
	case s != 0:
		return nil, s
	}
	return r.RawFileSystem.Read(c, in, buf)
}

// Writev is not done: Write is.
func (r *raw) Writev(<-chan struct{}, *fuse.WriteIn, [][]byte) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

func (r *raw) Write(c <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	switch s := r.f.ask(Call{Name: "write", Off: int64(in.Offset), Len: int64(in.Size)}); {
	case s == fuse.Status(Short):
		data = data[:len(data)/2]
		in.Size = uint32(len(data))
	case s != 0:
		return 0, s
	}
	return r.RawFileSystem.Write(c, in, data)
}

func (r *raw) Fsync(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if s := r.at("fsync"); s != 0 {
		return s
	}
	return r.RawFileSystem.Fsync(c, in)
}

func (r *raw) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if s := r.at("fsyncdir"); s != 0 {
		return s
	}
	return r.RawFileSystem.FsyncDir(c, in)
}

func (r *raw) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if s := r.at("allocate"); s != 0 {
		return s
	}
	return r.RawFileSystem.Fallocate(c, in)
}

func (r *raw) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if s := r.at("opendir"); s != 0 {
		return s
	}
	return r.RawFileSystem.OpenDir(c, in, out)
}

func (r *raw) ReadDir(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if s := r.at("readdir"); s != 0 {
		return s
	}
	return r.RawFileSystem.ReadDir(c, in, out)
}

func (r *raw) ReadDirPlus(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if s := r.at("readdir"); s != 0 {
		return s
	}
	return r.RawFileSystem.ReadDirPlus(c, in, out)
}

func (r *raw) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if s := r.at("statfs"); s != 0 {
		return s
	}
	return r.RawFileSystem.StatFs(c, h, out)
}
