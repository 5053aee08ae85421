package nfs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// around is a server whose results of one procedure a test sees before they are sent, to change them or to hold them back.
type around struct {
	rpcserver.Program
	proc nfs3.Proc
	see  func(out []byte)
}

func (p around) Serve(c *rpcserver.Call) rpcserver.Verdict {
	v := p.Program.Serve(c)
	if v == rpcserver.Done && p.ID() == nfs3.Prog && nfs3.Proc(c.Proc) == p.proc {
		p.see(c.Out)
	}
	return v
}

func serveAround(t *testing.T, dir string, proc nfs3.Proc, see func(out []byte)) (url string) {
	wrap := func(p rpcserver.Program) rpcserver.Program { return around{p, proc, see} }
	_, url = stand.NewFiles(t, stand.FileOptions{Wrap: wrap}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: everything}).TCP("127.0.0.1:0")
	return url
}

func TestReadFileTakesNoMemoryForASizeThatAServerOnlySays(t *testing.T) {
	data := random(17<<20 + 5) // more than is read at first
	for _, says := range []uint64{1<<64 - 1, 1 << 63, 1 << 46, uint64(len(data)) + 1, uint64(len(data)), uint64(len(data)) - 1, 1, 0} {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, "f"), data, 0o600))
		v := open(t, serveAround(t, dir, nfs3.ProcGetattr, func(out []byte) {
			attr := out[len(out)-84:] // fattr3, RFC 1813 section 2.6: the size is behind five numbers
			if infs.FileType(binary.BigEndian.Uint32(attr)) == infs.TypeRegular {
				binary.BigEndian.PutUint64(attr[20:], says)
			}
		}))
		b, err := v.ReadFile("f")
		if must(t, err); !bytes.Equal(b, data[:min(says, uint64(len(data)))]) {
			t.Errorf("a size of %d is said, and %d bytes are read", says, len(b))
		}
	}
}

func TestAListingThatDoesNotGetOnIsAnError(t *testing.T) {
	dir := t.TempDir()
	must(t, errors.Join(os.Mkdir(filepath.Join(dir, "d"), 0o755), os.WriteFile(filepath.Join(dir, "d/f"), nil, 0o600)))
	v := open(t, serveAround(t, dir, nfs3.ProcReaddirplus, func(out []byte) {
		clear(out[len(out)-4:]) // the end of the directory is never said to be there
	}))
	if l, err := v.ReadDir("."); err == nil {
		t.Errorf("ReadDir ends with %v and without an error", l)
	}
	if err := v.RemoveAll(t.Context(), "d"); err == nil {
		t.Error("RemoveAll has no error either")
	}
	at := infs.DirPage{}
	_, err := v.Self().Readdirplus(t.Context(), v.Root(), &at)
	must(t, err)
	if l, err := v.Self().Readdirplus(t.Context(), v.Root(), &at); err == nil {
		t.Errorf("Readdirplus goes on with %v, at %+v", l, at)
	}
}

// Another client puts a symbolic link in the place of a directory that is being removed: what it leads to stays.
func TestRemoveAllFollowsNoLinkThatComesMeanwhile(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	must(t, errors.Join(os.MkdirAll(in("d/below"), 0o755), os.Mkdir(in("precious"), 0o755)))
	must(t, errors.Join(os.WriteFile(in("d/below/f"), nil, 0o600), os.WriteFile(in("precious/f"), []byte("text"), 0o600)))
	var once sync.Once
	v := open(t, serveAround(t, dir, nfs3.ProcLookup, func([]byte) {
		once.Do(func() {
			if err := errors.Join(os.Rename(in("d"), in("moved")), os.Symlink("precious", in("d"))); err != nil {
				t.Error(err)
			}
		})
	}))
	if err := v.RemoveAll(t.Context(), "d"); err == nil {
		t.Error("a directory that is there no more was removed")
	}
	if b, err := os.ReadFile(in("precious/f")); err != nil || string(b) != "text" {
		t.Errorf("what the link leads to is gone: %v", err)
	}
	if _, err := os.Lstat(in("d")); err != nil {
		t.Errorf("the link: %v", err)
	}
	must(t, v.RemoveAll(t.Context(), "d")) // the link alone
	_, err := os.ReadFile(in("precious/f"))
	must(t, err)
}

// Another client makes the file after it was looked for and before it is made: what it wrote does not stay behind what is written.
func TestCreateEmptiesAFileThatComesMeanwhile(t *testing.T) {
	dir := t.TempDir()
	var once sync.Once
	v := open(t, serveAround(t, dir, nfs3.ProcLookup, func([]byte) {
		once.Do(func() {
			if err := os.WriteFile(filepath.Join(dir, "f"), []byte("another's"), 0o644); err != nil {
				t.Error(err)
			}
		})
	}))
	must(t, v.WriteFile(t.Context(), "f", []byte("ours"), 0o600))
	if b, err := os.ReadFile(filepath.Join(dir, "f")); string(b) != "ours" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// losing is a server that executes the first call of a procedure, and whose reply and memory of it are lost with the connection: as with one
// that starts again just then.
type losing struct {
	rpcserver.Program
	proc nfs3.Proc
	lose func() bool
}

func (p losing) Serve(c *rpcserver.Call) rpcserver.Verdict {
	v := p.Program.Serve(c)
	if v == rpcserver.Done && p.ID() == nfs3.Prog && nfs3.Proc(c.Proc) == p.proc && p.lose() {
		return rpcserver.Drop
	}
	return v
}

func TestAnExclusiveCreateDoesNotRefuseItself(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	var nc net.Conn
	lost := 0
	lose := func() bool {
		mu.Lock()
		defer mu.Unlock()
		if lost++; lost > 1 {
			return false
		}
		_ = nc.Close()
		return true
	}
	wrap := func(p rpcserver.Program) rpcserver.Program { return losing{p, nfs3.ProcCreate, lose} }
	at, url := stand.NewFiles(t, stand.FileOptions{Wrap: wrap}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: everything}).TCP("127.0.0.1:0")
	v, err := infs.Open(t.Context(), url, infs.Options{Dial: rpcclient.Stream(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", at.String())
		mu.Lock()
		defer mu.Unlock()
		nc = c
		return c, err
	})})
	must(t, err)
	defer func() { must(t, v.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	f, err := v.OpenFile(ctx, "f", os.O_CREATE|os.O_EXCL, 0o640)
	must(t, err)
	i, err := f.StatContext(ctx)
	if must(t, err); i.Mode() != 0o640 || i.Size() != 0 || time.Since(i.ModTime()).Abs() > time.Hour {
		t.Errorf("%v, %d bytes, of %v", i.Mode(), i.Size(), i.ModTime())
	}
	mu.Lock()
	if lost < 2 {
		t.Error("no call was sent again")
	}
	mu.Unlock()
	if _, err := v.OpenFile(ctx, "f", os.O_CREATE|os.O_EXCL, 0o640); !errors.Is(err, fs.ErrExist) {
		t.Errorf("once more: %v", err)
	}
}

// bare is a server that lists names without attributes, and answers LOOKUP with a refusal.
type bare struct {
	rpcserver.Program
	lookup nfs3.Status
}

func (p bare) Serve(c *rpcserver.Call) rpcserver.Verdict {
	v := p.Program.Serve(c)
	if v != rpcserver.Done || p.ID() != nfs3.Prog {
		return v
	}
	switch nfs3.Proc(c.Proc) {
	case nfs3.ProcReaddirplus:
		x := xdr.NewReader(append([]byte(nil), c.Out[oncrpc.ReplyLen:]...))
		var r nfs3.ReaddirRes
		r.Parse(&x)
		c.Out = r.Append(c.Out[:oncrpc.ReplyLen])
		e := nfs3.Entry{Plus: true}
		more, end := e.Parse(&x)
		for ; more; more, end = e.Parse(&x) {
			e.Attr.Set = false
			c.Out = e.Append(c.Out)
		}
		c.Out = nfs3.AppendEnd(c.Out, end)
	case nfs3.ProcLookup:
		r := nfs3.LookupRes{Status: p.lookup}
		c.Out = r.Append(c.Out[:oncrpc.ReplyLen])
	}
	return v
}

// Where a server leaves attributes out and does not tell them when it is asked, a listing fails: fs.WalkDir would take a directory for a file.
func TestAListingThatKnowsNoTypesFails(t *testing.T) {
	for st, want := range map[nfs3.Status]error{nfs3.ErrIO: infs.ErrIO, nfs3.ErrAcces: fs.ErrPermission, nfs3.ErrNoent: nil} {
		dir := t.TempDir()
		must(t, errors.Join(os.Mkdir(filepath.Join(dir, "d"), 0o755), os.WriteFile(filepath.Join(dir, "d/f"), nil, 0o600)))
		wrap := func(p rpcserver.Program) rpcserver.Program { return bare{p, st} }
		_, url := stand.NewFiles(t, stand.FileOptions{Wrap: wrap}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: everything}).TCP("127.0.0.1:0")
		v := open(t, url)
		l, err := v.ReadDir(".")
		if !errors.Is(err, want) || want == nil && (err != nil || len(l) != 1) {
			t.Errorf("LOOKUP answers %v: %v, %v", st, l, err)
		}
		if err := fs.WalkDir(v, ".", func(_ string, _ fs.DirEntry, err error) error { return err }); !errors.Is(err, want) {
			t.Errorf("LOOKUP answers %v: a walk ends with %v", st, err)
		}
	}
}

// A server that is away holds a Sync for as long as it likes; others' contexts end their own waiting.
func TestAContextEndsASyncThatWaitsForAnother(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	var once sync.Once
	v := open(t, serveAround(t, t.TempDir(), nfs3.ProcCommit, func([]byte) {
		once.Do(func() { close(asked) })
		<-answer
	}))
	f, err := v.Create(t.Context(), "f", 0o600)
	must(t, err)
	_, err = f.Write([]byte("text"))
	must(t, err)
	first := make(chan error, 1)
	go func() { first <- f.Sync() }()
	<-asked
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	second := make(chan error, 1)
	go func() { second <- f.SyncContext(ctx) }()
	select {
	case err := <-second:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	case <-time.After(patience / 2):
		t.Error("the second waits on, without its context")
	}
	close(answer)
	must(t, <-first)
	must(t, f.Sync()) // the lock is free
}
