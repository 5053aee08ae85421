package nfs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// from is raw calls from an address of this machine's own.
func (s *server) from(t *testing.T, addr string) *raw {
	r := s.raw(t, 0, 0)
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	c := rpcclient.NewClient(rpcclient.Stream(func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", s.hostPort(t)) }), rpcclient.Options{})
	t.Cleanup(func() { must(t, c.Close()) })
	r.c = c
	return r
}

func (r *raw) mountCall(proc uint32, args []byte) *xdr.Reader {
	r.t.Helper()
	x, err := r.call(mount3.Prog, mount3.Vers, proc, args)
	must(r.t, err)
	return x
}

// MOUNT's list has who mounted what and has not said otherwise (RFC 1813 sections 5.2.2 to 5.2.4), and EXPORT shows the
// exports with their clients (section 5.2.5).
func TestMountListAndExports(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
	other := t.TempDir()
	any := nfs.Client{Match: "127.0.0.0/8", Rights: open}
	must(t, s.nfs.SetExports(nfs.Export{Path: "/data", Dir: s.dir, Rights: open}, nfs.Export{Path: "/data/deep/er", Dir: other, Clients: []nfs.Client{any, {Match: "*.example.org"}}}))
	must(t, os.Mkdir(filepath.Join(s.dir, "sub"), 0o755))
	a, b := s.from(t, "127.0.0.11"), s.from(t, "127.0.0.12")
	for _, x := range []struct {
		r    *raw
		path string
	}{{a, "/data"}, {a, "/data"}, {a, "/data/sub"}, {b, "/data/deep/er"}, {b, "/data"}} {
		if _, st := x.r.mount(x.path); st != mount3.OK {
			t.Fatalf("%s: %v", x.path, st)
		}
	}
	if _, st := b.mount("/data/none"); st != mount3.ErrNoent {
		t.Errorf("a directory that is not there: %v", st)
	}
	list := func() (l []string) {
		x := a.mountCall(mount3.ProcDump, nil)
		for _, m := range mount3.ParseDump(x) {
			l = append(l, m.Host+":"+m.Dir)
		}
		must(t, x.Err())
		return l
	}
	want := func(l ...string) {
		t.Helper()
		if got := list(); !reflect.DeepEqual(got, l) {
			t.Errorf("mounted: %q, want %q", got, l)
		}
	}
	want("127.0.0.11:/data", "127.0.0.11:/data/sub", "127.0.0.12:/data", "127.0.0.12:/data/deep/er")
	a.mountCall(mount3.ProcUmnt, (&mount3.PathArgs{Path: []byte("/data/sub")}).Append(nil))
	a.mountCall(mount3.ProcUmnt, (&mount3.PathArgs{Path: []byte("/data/deep/er")}).Append(nil)) // another's
	want("127.0.0.11:/data", "127.0.0.12:/data", "127.0.0.12:/data/deep/er")
	b.mountCall(mount3.ProcUmntall, nil)
	want("127.0.0.11:/data")
	x := a.mountCall(mount3.ProcExport, nil)
	if l := mount3.ParseExports(x); x.Err() != nil || !reflect.DeepEqual(l, []mount3.Export{{Dir: "/data"}, {Dir: "/data/deep/er", Groups: []string{"127.0.0.0/8", "*.example.org"}}}) {
		t.Errorf("exports: %+v, %v", l, x.Err())
	}
}

// A client outside the rules mounts nothing, and a handle that it has from elsewhere opens nothing; taking a client's
// rights away counts for handles too.
func TestClientsOutsideTheRules(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), []byte("x"), 0o644))
	rules := func(l ...string) {
		e := nfs.Export{Path: "/data", Dir: s.dir}
		for _, m := range l {
			e.Clients = append(e.Clients, nfs.Client{Match: m, Rights: open})
		}
		must(t, s.nfs.SetExports(e))
	}
	rules("127.0.0.13")
	in, out := s.from(t, "127.0.0.13"), s.from(t, "127.0.0.14")
	root, st := in.mount("/data")
	if st != mount3.OK {
		t.Fatal(st)
	}
	f := in.lookup(root, "f").FH
	if _, st := out.mount("/data"); st != mount3.ErrAcces {
		t.Errorf("mount: %v", st)
	}
	for _, p := range []nfs3.Proc{nfs3.ProcGetattr, nfs3.ProcFsinfo, nfs3.ProcFsstat, nfs3.ProcPathconf, nfs3.ProcReadlink} {
		x, err := out.call(nfs3.Prog, nfs3.Vers, uint32(p), (&nfs3.FHArgs{FH: f}).Append(nil))
		if must(t, err); nfs3.Status(x.Uint32()) != nfs3.ErrAcces {
			t.Errorf("%s with another's handle is answered", p)
		}
	}
	if l := out.lookup(root, "f"); l.Status != nfs3.ErrAcces {
		t.Errorf("lookup: %v", l.Status)
	}
	if l := out.getacl(f, nfs3.MaskACL); l.Status != nfs3.ErrAcces {
		t.Errorf("NFSACL: %v", l.Status)
	}
	rules("127.0.0.14")
	if a := in.getattr(f); a.Status != nfs3.ErrAcces {
		t.Errorf("after the rule is gone: %v", a.Status)
	}
	if a := out.getattr(f); a.Status != nfs3.OK {
		t.Errorf("after the rule came: %v", a.Status)
	}
}

// Handles stay good over renames, by us and by others, and restarts; when the file is gone they are stale, also when
// another file has its name, and when its export is gone.
func TestHandlesSurviveAndGoStale(t *testing.T) {
	need.Root(t) // for the kernel's handles; TestFallbackHandles has the others
	state, dir := t.TempDir(), t.TempDir()
	e := nfs.Export{Rights: open, Dir: dir, Async: true, ID: 9}
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a/f"), []byte("x"), 0o644))
	s := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	a := r.lookup(root, "a").FH
	f := r.lookup(a, "f").FH
	good := func(when string) {
		t.Helper()
		if g := r.getattr(f); g.Status != nfs3.OK || g.Attr.Size != 1 {
			t.Errorf("%s: %v, %d bytes", when, g.Status, g.Attr.Size)
		}
	}
	v := s.mount(t)
	must(t, v.Rename(context.Background(), "a/f", "a/b/g"))
	good("after a rename")
	must(t, os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "c")))
	good("after its directory was renamed by another")
	s.Stop()
	e.Path = "/elsewhere" // and the export is another's, to its clients
	s = start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, e)
	r = s.raw(t, 0, 0)
	good("after a restart under another name")
	if l := r.lookup(a, "b"); l.Status != nfs3.OK {
		t.Errorf("a directory after the restart: %v", l.Status)
	}
	must(t, os.Remove(filepath.Join(dir, "c/b/g")))
	must(t, os.WriteFile(filepath.Join(dir, "c/b/g"), []byte("y"), 0o644))
	if g := r.getattr(f); g.Status != nfs3.ErrStale {
		t.Errorf("after removal: %v", g.Status)
	}
	e.ID = 10
	must(t, s.nfs.SetExports(e))
	if g := r.getattr(a); g.Status != nfs3.ErrStale {
		t.Errorf("after the export has gone: %v", g.Status)
	}
}

// A listing that goes on after its directory changed: cookies are the file system's own, so what stayed is listed once.
func TestCookiesAreStableUnderChange(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	const files = 500
	for i := range files {
		must(t, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("file%03d", i)), nil, 0o600))
	}
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	for _, plus := range []bool{false, true} {
		seen := make(map[string]int)
		var removed, added int
		a := nfs3.ReaddirArgs{Plus: plus, Dir: root, DirCount: 1000, MaxCount: 1500}
		for page := 0; ; page++ {
			proc := nfs3.ProcReaddir
			if plus {
				proc = nfs3.ProcReaddirplus
			}
			x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(proc), a.Append(nil))
			must(t, err)
			if x.Len() > 1500 {
				t.Errorf("a page of %d bytes where 1500 were asked for", x.Len())
			}
			var res nfs3.ReaddirRes
			if res.Parse(x); res.Status != nfs3.OK {
				t.Fatal(res.Status)
			}
			a.Verf = res.Verf
			e := nfs3.Entry{Plus: plus}
			more, eof := e.Parse(x)
			var last string
			for ; more; more, eof = e.Parse(x) {
				last = string(e.Name)
				seen[last]++
				a.Cookie = e.Cookie
			}
			must(t, x.Err())
			if eof {
				break
			}
			// The entry that the next page begins after goes, and others come.
			if strings.HasPrefix(last, "file") {
				must(t, os.Remove(filepath.Join(s.dir, last)))
				removed++
			}
			must(t, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("new%v%03d", plus, page)), nil, 0o600))
			added++
		}
		if removed < 5 || added < 5 {
			t.Fatalf("plus %v: %d removed and %d added on the way: no test", plus, removed, added)
		}
		l, err := os.ReadDir(s.dir)
		must(t, err)
		for _, e := range l {
			if n := seen[e.Name()]; n != 1 && strings.HasPrefix(e.Name(), "file") {
				t.Errorf("plus %v: %s, there all the time, is listed %d times", plus, e.Name(), n)
			}
		}
		for name, n := range seen {
			if n > 1 {
				t.Errorf("plus %v: %s is listed %d times", plus, name, n)
			}
		}
	}
}

// Holes take no space and read as zeroes; files may be larger than 4 GiB; special files are made and shown as such.
func TestHolesLargeAndSpecialFiles(t *testing.T) {
	each(t, func(t *testing.T, s *server) {
		v := s.mount(t)
		ctx := context.Background()
		f, err := v.Create(ctx, "sparse", 0o600)
		must(t, err)
		const far = 5 << 30
		_, err = f.WriteAt([]byte("end"), far)
		must(t, err)
		must(t, f.Sync())
		i, err := v.StatContext(ctx, "sparse")
		must(t, err)
		if at := i.Sys().(*infs.Attr); at.Size != far+3 || at.Used > 1<<20 {
			t.Errorf("size %d, used %d", at.Size, at.Used)
		}
		b := bytes.Repeat([]byte{1}, 10_000)
		if n, err := f.ReadAt(b, far-9_997); n != 10_000 || err != nil || string(b[9_997:]) != "end" || !bytes.Equal(b[:9_997], make([]byte, 9_997)) {
			t.Errorf("%d bytes across the end of a hole, %v", n, err)
		}
		must(t, f.Truncate(100))
		if i, err := v.StatContext(ctx, "sparse"); err != nil || i.Size() != 100 {
			t.Errorf("truncated: %v", err)
		}
		must(t, unix.Mkfifo(filepath.Join(s.dir, "fifo"), 0o600))
		l, err := net.Listen("unix", filepath.Join(s.dir, "socket"))
		must(t, err)
		defer func() { must(t, l.Close()) }()
		for name, want := range map[string]os.FileMode{"fifo": os.ModeNamedPipe, "socket": os.ModeSocket} {
			i, err := v.StatContext(ctx, name)
			must(t, err)
			if i.Mode().Type() != want {
				t.Errorf("%s: %v", name, i.Mode())
			}
			f, err := v.OpenFile(ctx, name, os.O_RDONLY, 0)
			must(t, err)
			if _, err := f.ReadAt(make([]byte, 10), 0); !errors.Is(err, nfs3.ErrInval) {
				t.Errorf("a read of %s: %v", name, err)
			}
		}
	})
}

// MKNOD makes what it is asked to; devices are root's to make.
func TestMknod(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	make := func(r *raw, name string, typ nfs3.FileType) nfs3.CreateRes {
		a := nfs3.MknodArgs{Where: nfs3.DirOp{Dir: root, Name: []byte(name)}, Type: typ, Attr: nfs3.SetAttr{ModeSet: true, Mode: 0o604}, Major: 1, Minor: 3}
		x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcMknod), a.Append(nil))
		must(t, err)
		var res nfs3.CreateRes
		res.Parse(x)
		must(t, x.Err())
		return res
	}
	for name, typ := range map[string]nfs3.FileType{"fifo": nfs3.TypeFifo, "sock": nfs3.TypeSock} {
		if res := make(r, name, typ); res.Status != nfs3.OK || res.Attr.Attr.Type != typ || res.Attr.Attr.Mode != 0o604 {
			t.Errorf("%s: %v, %+v", name, res.Status, res.Attr.Attr)
		}
	}
	if res := make(r, "fifo", nfs3.TypeFifo); res.Status != nfs3.ErrExist {
		t.Errorf("twice: %v", res.Status)
	}
	if res := make(r, "reg", nfs3.TypeReg); res.Status != nfs3.ErrBadtype {
		t.Errorf("a regular file: %v", res.Status)
	}
	if s.nfs.Squashed() == "" {
		// A container's root may make none; then the kernel's own answer is the server's.
		probe := filepath.Join(t.TempDir(), "null")
		switch err := unix.Mknod(probe, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err {
		case nil:
			must(t, os.Remove(probe))
			if res := make(r, "null", nfs3.TypeChr); res.Status != nfs3.OK || res.Attr.Attr.Type != nfs3.TypeChr || res.Attr.Attr.Major != 1 || res.Attr.Attr.Minor != 3 {
				t.Errorf("a device: %v, %+v", res.Status, res.Attr.Attr)
			}
		case unix.EPERM:
			if res := make(r, "null", nfs3.TypeChr); res.Status != nfs3.ErrPerm {
				t.Errorf("a device, where the kernel refuses it: %v", res.Status)
			}
		default:
			t.Fatal(err)
		}
		must(t, os.Chmod(s.dir, 0o777))
		if res := make(s.raw(t, 1234, 1234), "mine", nfs3.TypeBlk); res.Status != nfs3.ErrPerm {
			t.Errorf("a user makes a device: %v", res.Status)
		}
	}
}
