package filesystem_test

import (
	"bytes"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/target/filesystem"
)

// peer is a caller's connection that is none of RPC's.
type peer struct {
	conn, host atomic.Pointer[any]
	trusted    int
}

func (p *peer) Host() netip.Addr               { return netip.AddrFrom4([4]byte{192, 0, 2, 1}) }
func (p *peer) Privileged() bool               { return true }
func (p *peer) Trust()                         { p.trusted++ }
func (p *peer) Slots() int                     { return 8 }
func (p *peer) Memo() *atomic.Pointer[any]     { return &p.conn }
func (p *peer) HostMemo() *atomic.Pointer[any] { return &p.host }

// memory is where a read puts data, and lends nothing.
type memory struct{ b []byte }

func (m *memory) Loan(int, int) (int, bool) { return -1, false }
func (m *memory) Unlend()                   {}
func (m *memory) Sink(n int) ([][]byte, error) {
	m.b = make([]byte, n)
	return [][]byte{m.b[:n/2], m.b[n/2:]}, nil
}

type steady struct{}

func (steady) Superseded() bool { return false }

// A file is made, written, read, listed, renamed and removed by callers of no protocol, with plain values.
func TestFilesAreServedWithoutAProtocol(t *testing.T) {
	fs, err := filesystem.New(filesystem.Options{}, filesystem.Export{Path: "/data", Dir: t.TempDir(), Async: true, Rights: filesystem.Rights{Squash: filesystem.SquashNone}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := fs.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := &peer{}
	caller := filesystem.Caller{Peer: p, MayWait: true, Cred: filesystem.Credential{Known: true}}
	ok := func(what string, e filesystem.Errno) {
		t.Helper()
		if e != filesystem.OK {
			t.Fatalf("%s: %v", what, e)
		}
	}
	root, e := fs.Mount(&caller, "/data")
	ok("mount", e)
	if fs.ExportOf(root) != fs.Exports()[0] || p.trusted == 0 {
		t.Errorf("export %v, trusted %d times", fs.ExportOf(root), p.trusted)
	}
	var dir filesystem.Object
	ok("find", fs.FindDir(&caller, root, &dir, true))
	defer dir.End()
	var made filesystem.Made
	ok("create", dir.Create([]byte("f"), filesystem.Guarded, &filesystem.SetAttr{ModeSet: true, Mode: 0o640}, [8]byte{}, &made))
	if a := made.Attr; !a.Known || a.Format != unix.S_IFREG || a.Mode != 0o640 || a.Export != fs.Exports()[0].ID || !made.Dir.Known || !made.Dir.After.Known {
		t.Errorf("made %+v", made)
	}
	if e := dir.Create([]byte("f"), filesystem.Guarded, &filesystem.SetAttr{}, [8]byte{}, &filesystem.Made{}); e != filesystem.Errno(unix.EEXIST) {
		t.Errorf("made again: %v", e)
	}
	var file filesystem.Object
	ok("find the file", fs.FindToChange(&caller, made.Handle, &file))
	data := bytes.Repeat([]byte("plain "), 1000)
	w := filesystem.Write{Offset: 10, N: len(data), Data: [][]byte{data[:7], data[7:]}, By: steady{}}
	ok("write", file.Write(&w))
	var c filesystem.Change
	verf, e := file.Commit(&c)
	ok("commit", e)
	if w.Done != len(data) || verf != w.Verf || c.Size != uint64(10+len(data)) || w.Change.Size != 0 {
		t.Errorf("%d of %d bytes written, verifiers %x %x, %d and %d bytes before", w.Done, len(data), w.Verf, verf, w.Change.Size, c.Size)
	}
	var m memory
	r := filesystem.Read{Offset: 8, Want: len(data) + 100, Into: &m}
	ok("read", file.Read(&r))
	if !r.EOF || !bytes.Equal(m.b[:r.N], append([]byte{0, 0}, data...)) {
		t.Errorf("%d bytes read, end %v", r.N, r.EOF)
	}
	if e := file.SetAttr(&filesystem.SetAttr{SizeSet: true}, func(*filesystem.Change) bool { return false }, &c); e != filesystem.ErrChanged {
		t.Errorf("a change that its condition forbids: %v", e)
	}
	one, e := file.Key()
	ok("key", e)
	file.End()

	ok("rename", dir.Rename([]byte("f"), &dir, []byte("g"), &filesystem.Change{}, &filesystem.Change{}))
	var a filesystem.Attr
	h, e := dir.Lookup([]byte("g"), &a)
	ok("lookup", e)
	ok("find by the new name", fs.Find(&caller, h, &file))
	other, e := file.Key()
	ok("key", e)
	if one != other || a.Size != c.Size {
		t.Error("another file by its new name")
	}
	file.End()
	seen := map[string]bool{}
	end, e := dir.ReadDir(0, func(d *filesystem.Dirent) bool {
		d.Look()
		seen[string(d.Name)] = d.Attr.Known
		return true
	})
	ok("list", e)
	if !end || !seen["g"] || seen["f"] {
		t.Errorf("listed %v, end %v", seen, end)
	}
	ok("remove", dir.Remove([]byte("g"), &filesystem.Change{}))
	if e := fs.Find(&caller, h, &file); e != filesystem.Errno(unix.ESTALE) {
		t.Errorf("a removed file is found: %v", e)
	}
	h[len(h)-1] ^= 1
	if e := fs.Find(&caller, h, &file); e != filesystem.ErrBadHandle {
		t.Errorf("a forged handle: %v", e)
	}
	// A caller that must not wait is told so where the handle is not in the cache, and may come again.
	hasty := filesystem.Caller{Peer: p, Named: fs.ExportOf(h)}
	if e := fs.Find(&hasty, h, &file); e != filesystem.ErrWait {
		t.Errorf("without leave to wait: %v", e)
	}
}
