package nfs_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (r *raw) write(fh []byte, off uint64, data []byte, how nfs3.Stable) nfs3.WriteRes {
	r.t.Helper()
	a := nfs3.WriteArgs{FH: fh, Offset: off, Count: uint32(len(data)), Stable: how, Len: uint32(len(data))}
	args := append(a.Append(nil), data...)
	x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcWrite), append(args, make([]byte, xdr.Pad(len(data)))...))
	must(r.t, err)
	var w nfs3.WriteRes
	w.Parse(x)
	must(r.t, x.Err())
	return w
}

func (r *raw) unstable(fh []byte, off uint64, data []byte) nfs3.Verf {
	r.t.Helper()
	w := r.write(fh, off, data, nfs3.Unstable)
	if w.Status != nfs3.OK || w.Count != uint32(len(data)) {
		r.t.Fatalf("WRITE: %v, %d bytes", w.Status, w.Count)
	}
	return w.Verf
}

func (r *raw) commit(fh []byte) nfs3.WriteRes {
	r.t.Helper()
	a := nfs3.RangeArgs{FH: fh}
	x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcCommit), a.Append(nil))
	must(r.t, err)
	w := nfs3.WriteRes{Commit: true}
	w.Parse(x)
	must(r.t, x.Err())
	return w
}

// hears fails the test when a client whose data was lost is told that it is durable.
func (r *raw) hears(who string, fh []byte, verf nfs3.Verf) {
	r.t.Helper()
	if c := r.commit(fh); c.Status == nfs3.OK && c.Verf == verf {
		r.t.Errorf("%s: COMMIT says that what was lost is durable", who)
	}
}

// The kernel tells each descriptor once that a file's data was lost, and some of them never. Who has written to the file
// and has not committed hears of it all the same, whatever happened to the file between.
func TestEveryClientHearsOfDataThatWasLost(t *testing.T) {
	d := newLossyDisk(t)
	must(t, os.Chmod(d.dir, 0o777))
	x := nfs.Export{Rights: open, Dir: d.dir, Path: "/data"}
	other := nfs.Export{Rights: open, Dir: d.dir, Path: "/other"}
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, x)
	must(t, s.nfs.SetExports(x, other))
	a, b := s.raw(t, 1001, 1001), s.raw(t, 1002, 1002)
	root, st := a.mount("/data")
	if st != mount3.OK {
		t.Fatal(st)
	}
	root2, _ := a.mount("/other")
	data := random(256<<10, 1)
	told := func(t *testing.T, path string) { // a process of this machine is told, and the kernel counts that
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		must(t, err)
		if f.Sync() == nil {
			t.Fatal("nothing was lost")
		}
		must(t, f.Close())
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T, path string, fh, fh2 []byte)
	}{
		{"both of one file", func(t *testing.T, path string, fh, _ []byte) {
			va, vb := a.unstable(fh, 0, data), b.unstable(fh, 1<<20, data)
			writeBack(t, path)
			a.hears("the first", fh, va)
			b.hears("the second", fh, vb)
		}},
		{"by two exports", func(t *testing.T, path string, fh, fh2 []byte) {
			va, vb := a.unstable(fh, 0, data), b.unstable(fh2, 1<<20, data)
			writeBack(t, path)
			a.hears("the first", fh, va)
			b.hears("the second", fh2, vb)
		}},
		{"while another process asks, and another user opens", func(t *testing.T, path string, fh, _ []byte) {
			va := a.unstable(fh, 0, data)
			writeBack(t, path)
			told(t, path)
			b.write(fh, 0, data[:1], nfs3.FileSync)
			a.hears("the writer", fh, va)
		}},
		{"while another process asks, and the mode changes", func(t *testing.T, path string, fh, _ []byte) {
			va := a.unstable(fh, 0, data)
			writeBack(t, path)
			told(t, path)
			must(t, os.Chmod(path, 0o606))
			a.write(fh, 0, data[:1], nfs3.FileSync)
			a.hears("the writer", fh, va)
		}},
		{"at a synchronous WRITE", func(t *testing.T, path string, fh, _ []byte) {
			va := a.unstable(fh, 0, data)
			writeBack(t, path)
			a.write(fh, 0, data[:1], nfs3.FileSync)
			a.hears("the writer", fh, va)
		}},
		{"and the file was closed here", func(t *testing.T, path string, fh, _ []byte) {
			va := a.unstable(fh, 0, data)
			writeBack(t, path)
			ro := x
			ro.AnonUID = 1003 + x.AnonUID
			must(t, s.nfs.SetExports(ro, other)) // nodes of an export that changes are closed
			must(t, s.nfs.SetExports(x, other))
			a.hears("the writer", fh, va)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(d.dir, c.name)
			must(t, os.WriteFile(path, []byte("x"), 0o666))
			must(t, os.Chmod(path, 0o666))
			l, l2 := a.lookup(root, c.name), a.lookup(root2, c.name)
			if l.Status != nfs3.OK || l2.Status != nfs3.OK {
				t.Fatal(l.Status, l2.Status)
			}
			d.fill()
			defer func() {
				d.drain()
				must(t, unix.Truncate(path, 0))
			}()
			c.do(t, path, l.FH, l2.FH)
		})
	}
}

// gate is storage whose Sync waits until it is told what to answer.
type gate struct {
	forgetful
	mu    sync.Mutex
	asks  int
	asked chan struct{} // takes one for each Sync that waits
	tell  chan error    // gives an answer to each; closed: no Sync waits
}

func newGate() *gate { return &gate{asked: make(chan struct{}, 1000), tell: make(chan error)} }

func (g *gate) Sync(fd int) error {
	g.mu.Lock()
	g.asks++
	g.mu.Unlock()
	g.asked <- struct{}{}
	if err := <-g.tell; err != nil {
		return err
	}
	return g.forgetful.Sync(fd)
}

// A flush that fails is told to all whose COMMITs it answers: the kernel tells the next fsync of the descriptor nothing.
func TestCommitsAtOnceShareAnError(t *testing.T) {
	g := newGate()
	s := start(t, "tcp", nfs.Options{Storage: g}, rpcserver.Options{}, nfs.Export{Rights: open})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	a, b := s.raw(t, 0, 0), s.raw(t, 0, 0)
	root, _ := a.mount("/data")
	fh := a.lookup(root, "f").FH
	va, vb := a.unstable(fh, 0, []byte("one")), b.unstable(fh, 3, []byte("two"))
	ra, rb := make(chan nfs3.WriteRes, 1), make(chan nfs3.WriteRes, 1)
	go func() { ra <- a.commit(fh) }()
	<-g.asked
	go func() { rb <- b.commit(fh) }()
	// Both are being executed when the medium fails for one of them; a server that lets them flush at once asks for both.
	if b.getattr(fh).Status != nfs3.OK {
		t.Error("GETATTR waits for a COMMIT")
	}
	g.tell <- unix.EIO
	close(g.tell)
	if r := <-ra; r.Status == nfs3.OK && r.Verf == va {
		t.Error("the first COMMIT says that lost data is durable")
	}
	if r := <-rb; r.Status == nfs3.OK && r.Verf == vb {
		t.Error("the second COMMIT says that lost data is durable")
	}
}

// slowWrite is a gate whose first Pwrite also waits, before it writes.
type slowWrite struct {
	*gate
	once    sync.Once
	written chan struct{}
}

func (s *slowWrite) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	s.once.Do(func() {
		s.asked <- struct{}{}
		<-s.written
	})
	return s.gate.Pwrite(fd, bufs, n, off, sync)
}

// A WRITE whose data comes into the cache behind a COMMIT's flush is not covered by it: it is flushed before its file is
// closed here, and what is lost at that its client hears of.
func TestAWriteBesideACommitStaysUnflushed(t *testing.T) {
	g := &slowWrite{gate: newGate(), written: make(chan struct{})}
	x := nfs.Export{Rights: open, Path: "/data", Dir: t.TempDir()}
	s := start(t, "tcp", nfs.Options{Storage: g}, rpcserver.Options{}, x)
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	a, b := s.raw(t, 0, 0), s.raw(t, 0, 0)
	root, _ := a.mount("/data")
	fh := a.lookup(root, "f").FH
	rb := make(chan nfs3.Verf, 1)
	go func() { rb <- b.unstable(fh, 0, []byte("data")) }()
	<-g.asked
	ra := make(chan nfs3.WriteRes, 1)
	go func() { ra <- a.commit(fh) }()
	<-g.asked
	g.tell <- nil
	if r := <-ra; r.Status != nfs3.OK {
		t.Fatal(r.Status)
	}
	close(g.written)
	v := <-rb
	// The export changes, so that the file is closed; its kernel may forget then what it could not write.
	g.forgetful.mu.Lock()
	g.fail = unix.ENOSPC
	g.forgetful.mu.Unlock()
	close(g.tell)
	x.ReadOnly = true
	must(t, s.nfs.SetExports(x))
	g.forgetful.mu.Lock()
	if g.fail != nil {
		t.Error("a file with unflushed data is closed and not flushed")
	}
	g.forgetful.mu.Unlock()
	x.ReadOnly = false
	must(t, s.nfs.SetExports(x))
	b.hears("who wrote during the COMMIT", fh, v)
}

// RFC 1813 section 2.6: what COMMIT says of before and after it is of no time in which another client wrote. A client that
// takes that WRITE's change of the attributes for its own keeps pages that are not the file's any more.
func TestCommitDoesNotTakeAnothersWriteForItsOwn(t *testing.T) {
	g := newGate()
	s := start(t, "tcp", nfs.Options{Storage: g}, rpcserver.Options{}, nfs.Export{Rights: open})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	a, b := s.raw(t, 0, 0), s.raw(t, 0, 0)
	root, _ := a.mount("/data")
	fh := a.lookup(root, "f").FH
	own := a.write(fh, 0, []byte("one"), nfs3.Unstable).Wcc.After.Attr
	ra := make(chan nfs3.WriteRes, 1)
	go func() { ra <- a.commit(fh) }()
	<-g.asked
	now := b.write(fh, 3, []byte("another's"), nfs3.Unstable).Wcc.After.Attr
	close(g.tell)
	r := <-ra
	if r.Status != nfs3.OK || !r.Wcc.After.Set || r.Wcc.After.Attr != now {
		t.Fatalf("%v, %+v", r.Status, r.Wcc)
	}
	if w := r.Wcc; w.BeforeSet && w.Size == own.Size && w.Mtime == own.Mtime && w.Ctime == own.Ctime {
		t.Error("COMMIT says that nothing but itself came between the client's own WRITE and now")
	}
}

// A change that waits for the medium holds up no other of its directory, and those that come meanwhile share a flush.
func TestChangesOfADirectoryShareFlushes(t *testing.T) {
	g := newGate()
	s := start(t, "tcp", nfs.Options{Storage: g}, rpcserver.Options{}, nfs.Export{Rights: open})
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	const n = 24
	var wg sync.WaitGroup
	mkdir := func(i int) {
		a := nfs3.MkdirArgs{Where: nfs3.DirOp{Dir: root, Name: []byte{'a' + byte(i)}}}
		x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcMkdir), a.Append(nil))
		var res nfs3.CreateRes
		if err == nil {
			res.Parse(x)
		}
		if err != nil || res.Status != nfs3.OK {
			t.Error(err, res.Status)
		}
	}
	wg.Go(func() { mkdir(0) })
	<-g.asked
	for i := 1; i < n; i++ {
		wg.Go(func() { mkdir(i) })
	}
	for i := range n {
		eventually(t, "a name that is made while another waits for the medium", func() bool {
			_, err := os.Lstat(filepath.Join(s.dir, string(rune('a'+i))))
			return err == nil
		})
	}
	close(g.tell)
	wg.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.asks > n/2 {
		t.Errorf("%d flushes of a directory for %d changes at once", g.asks, n)
	}
}

// A list that is replaced keeps nothing of the one before open: no descriptor, and no file system busy.
func TestReplacedExportsAreClosed(t *testing.T) {
	x := nfs.Export{Rights: open, Path: "/data", Dir: t.TempDir()}
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, x)
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	count := func() (n int) {
		l, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		for _, e := range l {
			if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && to == s.dir {
				n++
			}
		}
		return n
	}
	for i := range 10 {
		if a := r.getattr(root); a.Status != nfs3.OK {
			t.Fatal(a.Status)
		}
		x.ReadOnly = i%2 == 0
		must(t, s.nfs.SetExports(x))
	}
	eventually(t, "one descriptor of the directory is left", func() bool { return count() == 1 })
	must(t, s.nfs.SetExports())
	eventually(t, "no descriptor of the directory is left", func() bool { return count() == 0 })
}
