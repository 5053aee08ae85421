package nfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// witness is storage that remembers how each file was when it was last made durable.
type witness struct {
	forgetful
	mu    sync.Mutex
	known map[uint64]unix.Stat_t
}

func (w *witness) Sync(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := w.forgetful.Sync(fd); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.known[st.Ino] = st
	return nil
}

// durable reports whether a file is as it was when it was last made durable.
func (w *witness) durable(t *testing.T, path string) bool {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	w.mu.Lock()
	defer w.mu.Unlock()
	k, ok := w.known[st.Ino]
	return ok && k.Mode == st.Mode && k.Uid == st.Uid && k.Gid == st.Gid && k.Size == st.Size && k.Mtim == st.Mtim && k.Ctim == st.Ctim
}

// RFC 1813 section 4.8: what changes names or attributes is durable, all of it, when it is answered.
func TestChangesAreDurableWhenTheyAreAnswered(t *testing.T) {
	w := &witness{known: make(map[uint64]unix.Stat_t)}
	s := start(t, "tcp", nfs.Options{Storage: w}, rpcserver.Options{}, nfs.Export{Rights: open})
	v, r := s.mount(t), s.raw(t, uint32(os.Getuid()), uint32(os.Getgid()))
	root, st := r.mount("/data")
	if st != mount3.OK {
		t.Fatal(st)
	}
	verf := nfs3.Verf{1, 2, 3, 4, 5, 6, 7, 8}
	create := func(name string, how nfs3.CreateHow, a nfs3.SetAttr) error {
		c := nfs3.CreateArgs{Where: nfs3.DirOp{Dir: root, Name: []byte(name)}, How: how, Attr: a, Verf: verf}
		x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcCreate), c.Append(nil))
		must(t, err)
		var res nfs3.CreateRes
		if res.Parse(x); res.Status != nfs3.OK {
			return res.Status
		}
		return x.Err()
	}
	must(t, os.WriteFile(filepath.Join(s.dir, "old"), []byte("content"), 0o644))
	must(t, os.WriteFile(filepath.Join(s.dir, "there"), nil, 0o644))
	must(t, os.Mkdir(filepath.Join(s.dir, "d"), 0o755))
	// A umask takes away what is asked for here, so that the mode has to be set once more.
	mode := nfs3.SetAttr{ModeSet: true, Mode: 0o2777}
	for _, c := range []struct {
		what  string
		do    func() error
		check []string
	}{
		{"CREATE with a mode", func() error { return create("f", nfs3.Guarded, mode) }, []string{"f", "."}},
		{"CREATE EXCLUSIVE", func() error { return create("x", nfs3.Exclusive, nfs3.SetAttr{}) }, []string{"x", "."}},
		{"CREATE that truncates", func() error { return create("old", nfs3.Unchecked, nfs3.SetAttr{SizeSet: true}) }, []string{"old"}},
		{"MKDIR", func() error { return v.Mkdir(t.Context(), "m", 0o777|fs.ModeSticky) }, []string{"m", "."}},
		{"SETATTR of a size", func() error { return v.Truncate(t.Context(), "f", 12345) }, []string{"f"}},
		{"SETATTR of a mode", func() error { return v.Chmod(t.Context(), "d", 0o700) }, []string{"d"}},
		{"SYMLINK", func() error { return v.Symlink(t.Context(), "f", "s") }, []string{"."}},
		{"LINK", func() error { return v.Link(t.Context(), "f", "l") }, []string{"."}},
		{"RENAME", func() error { return v.Rename(t.Context(), "l", "d/l") }, []string{".", "d"}},
		{"REMOVE", func() error { return v.Remove(t.Context(), "s") }, []string{"."}},
		{"RMDIR", func() error { return v.Remove(t.Context(), "m") }, []string{"."}},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		for _, name := range c.check {
			if !w.durable(t, filepath.Join(s.dir, name)) {
				t.Errorf("%s was answered, and %s is not durable as it is", c.what, name)
			}
		}
	}
	// RFC 1813 section 3.3.8: whoever comes with the same verifier made the file, and others did not.
	must(t, create("x", nfs3.Exclusive, nfs3.SetAttr{}))
	verf[7]++
	if err := create("x", nfs3.Exclusive, nfs3.SetAttr{}); !errors.Is(err, nfs3.ErrExist) {
		t.Errorf("CREATE EXCLUSIVE of a file with another verifier: %v", err)
	}
	// Somebody asks once more for a file that a server made which did not live to answer.
	must(t, os.WriteFile(filepath.Join(s.dir, "again"), nil, 0o644))
	must(t, create("again", nfs3.Unchecked, nfs3.SetAttr{}))
	if !w.durable(t, s.dir) {
		t.Error("CREATE of a file that is there was answered, and its name is not durable")
	}
	// And what cannot be made durable is not answered as done.
	for what, do := range map[string]func() error{
		"CREATE":  func() error { return create("n", nfs3.Guarded, nfs3.SetAttr{}) },
		"SETATTR": func() error { return v.Truncate(t.Context(), "f", 1) },
		"RENAME":  func() error { return v.Rename(t.Context(), "there", "d/there") },
		"REMOVE":  func() error { return v.Remove(t.Context(), "again") },
	} {
		w.forgetful.mu.Lock()
		w.fail = unix.EIO
		w.forgetful.mu.Unlock()
		if err := do(); !errors.Is(err, nfs3.ErrIO) {
			t.Errorf("%s on a medium that fails: %v", what, err)
		}
	}
}

// What was done is never answered JUKEBOX, whatever becomes of it afterwards: the client would do it once more, meet its own
// change, and say that the file exists already, or that there is none.
func TestAChangeThatWasMadeIsNotAskedForAgain(t *testing.T) {
	w := &witness{known: make(map[uint64]unix.Stat_t)}
	s := start(t, "tcp", nfs.Options{Storage: w}, rpcserver.Options{}, nfs.Export{Rights: open})
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	at := func(name string) nfs3.DirOp { return nfs3.DirOp{Dir: root, Name: []byte(name)} }
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	file := r.lookup(root, "f").FH
	for i, errno := range []unix.Errno{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.EBUSY} {
		to := string(rune('0' + i))
		create, excl := nfs3.CreateArgs{Where: at("c" + to)}, nfs3.CreateArgs{Where: at("x" + to), How: nfs3.Exclusive}
		mkdir, fifo := nfs3.MkdirArgs{Where: at("d" + to)}, nfs3.MknodArgs{Where: at("p" + to), Type: nfs3.TypeFifo}
		link, rename := nfs3.LinkArgs{FH: file, Link: at("l" + to)}, nfs3.RenameArgs{From: at("l" + to), To: at("m" + to)}
		remove, rmdir := at("m"+to), at("d"+to)
		set := nfs3.SetattrArgs{FH: file, Attr: nfs3.SetAttr{SizeSet: true, Size: uint64(i) + 1}}
		for _, c := range []struct {
			proc nfs3.Proc
			args []byte
		}{
			{nfs3.ProcCreate, create.Append(nil)}, {nfs3.ProcCreate, excl.Append(nil)}, {nfs3.ProcMkdir, mkdir.Append(nil)}, {nfs3.ProcMknod, fifo.Append(nil)},
			{nfs3.ProcLink, link.Append(nil)}, {nfs3.ProcRename, rename.Append(nil)}, {nfs3.ProcRemove, remove.Append(nil)}, {nfs3.ProcRmdir, rmdir.Append(nil)},
			{nfs3.ProcSetattr, set.Append(nil)},
		} {
			w.forgetful.mu.Lock()
			w.fail = errno
			w.forgetful.mu.Unlock()
			if st := r.status(nfs3.Prog, uint32(c.proc), c.args); st == nfs3.OK || st == nfs3.ErrJukebox {
				t.Errorf("%v, done on a medium that answers %v: %v", c.proc, errno, st)
			}
		}
	}
}
