package nfs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// raw makes calls with arguments of the test's own making.
type raw struct {
	t    *testing.T
	c    *rpcclient.Client
	cred rpcclient.Auth

	owner int // of what its calls make, where a test asks
}

func (s *server) hostPort(t *testing.T) string {
	u, err := url.Parse(s.url)
	must(t, err)
	return u.Host
}

func (s *server) raw(t *testing.T, uid, gid uint32) *raw {
	sys := oncrpc.Sys{UID: uid, GID: gid}
	r := &raw{t: t, c: rpcclient.NewClient(rpcclient.TCP(s.hostPort(t)), rpcclient.Options{}), cred: rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "test")}}
	t.Cleanup(func() { must(t, r.c.Close()) })
	return r
}

func (r *raw) call(prog, vers, proc uint32, args []byte) (*xdr.Reader, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := &rpcclient.Call{Prog: prog, Vers: vers, Proc: proc, Cred: r.cred, Args: args}
	err := r.c.Do(ctx, c)
	x := xdr.NewReader(c.Results)
	return &x, err
}

func (r *raw) mount(path string) ([]byte, mount3.Status) {
	a := mount3.PathArgs{Path: []byte(path)}
	x, err := r.call(mount3.Prog, mount3.Vers, mount3.ProcMnt, a.Append(nil))
	must(r.t, err)
	var m mount3.MntRes
	m.Parse(x)
	must(r.t, x.Err())
	return bytes.Clone(m.FH), m.Status
}

func (r *raw) lookup(dir []byte, name string) nfs3.LookupRes {
	a := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcLookup), a.Append(nil))
	must(r.t, err)
	var l nfs3.LookupRes
	l.Parse(x)
	must(r.t, x.Err())
	l.FH = bytes.Clone(l.FH)
	return l
}

func (r *raw) getattr(fh []byte) nfs3.AttrRes {
	a := nfs3.FHArgs{FH: fh}
	x, err := r.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcGetattr), a.Append(nil))
	must(r.t, err)
	var l nfs3.AttrRes
	l.Parse(x)
	must(r.t, x.Err())
	return l
}

func TestPathsDoNotEscape(t *testing.T) {
	outer := t.TempDir()
	dir := filepath.Join(outer, "export")
	must(t, os.MkdirAll(filepath.Join(dir, "in"), 0o755))
	must(t, os.WriteFile(filepath.Join(outer, "secret"), []byte("x"), 0o644))
	must(t, os.Symlink(outer, filepath.Join(dir, "out")))
	must(t, os.Symlink("../secret", filepath.Join(dir, "s")))
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true, Dir: dir})
	r := s.raw(t, 0, 0)
	root, st := r.mount("/data")
	if st != mount3.OK {
		t.Fatal(st)
	}
	for _, path := range []string{"/data/..", "/data/in/../..", "/data/out", "/data/out/export", "/data/s", "/", "/dat", "/database", "data", "", "/data\x00/in"} {
		if _, st := r.mount(path); st == mount3.OK {
			t.Errorf("%q could be mounted", path)
		}
	}
	if fh, st := r.mount("/data/in/"); st != mount3.OK || r.getattr(fh).Attr.Type != nfs3.TypeDir {
		t.Errorf("a directory of the export could not be mounted: %v", st)
	}
	for _, name := range []string{"../secret", "in/..", "/", "in/", "a\x00b", ""} {
		if l := r.lookup(root, name); l.Status != nfs3.ErrInval {
			t.Errorf("lookup of %q: %v", name, l.Status)
		}
	}
	rootAttr := r.getattr(root).Attr
	if l := r.lookup(root, ".."); l.Status != nfs3.OK || l.Attr.Attr.FileID != rootAttr.FileID {
		t.Errorf(".. of the root is %d, %v", l.Attr.Attr.FileID, l.Status)
	}
	in := r.lookup(root, "in")
	if l := r.lookup(in.FH, ".."); l.Status != nfs3.OK || l.Attr.Attr.FileID != rootAttr.FileID {
		t.Errorf(".. of a directory: %v", l.Status)
	}
	if l := r.lookup(root, "out"); l.Status != nfs3.OK || l.Attr.Attr.Type != nfs3.TypeLnk {
		t.Errorf("a symbolic link is not just that: %v, %v", l.Status, l.Attr.Attr.Type)
	}
	if l := r.lookup(r.lookup(root, "out").FH, "secret"); l.Status != nfs3.ErrNotdir {
		t.Errorf("lookup through a symbolic link: %v", l.Status)
	}
	// A directory that others move out of the export leads nowhere.
	must(t, os.Rename(filepath.Join(dir, "in"), filepath.Join(outer, "in")))
	if l := r.lookup(in.FH, ".."); l.Status == nfs3.OK {
		t.Error(".. of a directory that was moved out of the export leads out")
	}
}

func TestForgedHandles(t *testing.T) {
	state := t.TempDir()
	s := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), []byte("x"), 0o644))
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	good := r.lookup(root, "f").FH
	if a := r.getattr(good); a.Status != nfs3.OK {
		t.Fatal(a.Status)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if a := r.getattr(bad); a.Status != nfs3.ErrBadhandle {
			t.Errorf("a handle with byte %d changed: %v", i, a.Status)
		}
	}
	for _, bad := range [][]byte{{}, {1}, good[:len(good)-1], append(bytes.Clone(good), 0), make([]byte, 64)} {
		if a := r.getattr(bad); a.Status != nfs3.ErrBadhandle {
			t.Errorf("a handle of %d bytes: %v", len(bad), a.Status)
		}
	}
	// A server with another key knows nothing of it; one with the same state directory does.
	other := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true, Dir: s.dir})
	if a := other.raw(t, 0, 0).getattr(good); a.Status != nfs3.ErrBadhandle {
		t.Errorf("at a server with another key: %v", a.Status)
	}
	s.Stop()
	must(t, os.Rename(filepath.Join(s.dir, "f"), filepath.Join(s.dir, "g")))
	again := start(t, "tcp", nfs.Options{StateDir: state}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true, Dir: s.dir})
	if a := again.raw(t, 0, 0).getattr(good); a.Status != nfs3.OK {
		t.Errorf("after a restart and a rename: %v", a.Status)
	}
	must(t, os.Remove(filepath.Join(s.dir, "g")))
	if a := again.raw(t, 0, 0).getattr(good); a.Status != nfs3.ErrStale {
		t.Errorf("after removal: %v", a.Status)
	}
}

func TestHandlesOfAnotherExport(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	must(t, os.WriteFile(filepath.Join(b, "f"), []byte("x"), 0o644))
	closed := nfs.Export{Path: "/b", Dir: b, Clients: []nfs.Client{{Match: "192.0.2.0/24", Rights: open}}}
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Dir: a})
	must(t, s.nfs.SetExports(nfs.Export{Path: "/b", Dir: b, Rights: open}))
	r := s.raw(t, 0, 0)
	fh, st := r.mount("/b")
	if st != mount3.OK {
		t.Fatal(st)
	}
	must(t, s.nfs.SetExports(closed))
	r = s.raw(t, 0, 0)
	if _, st := r.mount("/b"); st != mount3.ErrAcces {
		t.Errorf("a client outside the rules mounts: %v", st)
	}
	if g := r.lookup(fh, "f"); g.Status != nfs3.ErrAcces {
		t.Errorf("a client outside the rules uses an old handle: %v", g.Status)
	}
	must(t, s.nfs.SetExports())
	if g := s.raw(t, 0, 0).getattr(fh); g.Status != nfs3.ErrStale {
		t.Errorf("a handle of an export that is gone: %v", g.Status)
	}
}

// beOthers skips where the kernel lets a server act as no other user.
func beOthers(t *testing.T) {
	t.Helper()
	need.Root(t)
	need.Capabilities(t, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_SETGID, unix.CAP_SETUID)
}

func TestRightsAndIdentities(t *testing.T) {
	beOthers(t)
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	must(t, os.WriteFile(filepath.Join(dir, "private"), []byte("root's"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "group"), []byte("group's"), 0o640))
	must(t, os.Chown(filepath.Join(dir, "group"), 0, 4321))
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: nfs.Rights{Insecure: true}, Dir: dir, Async: true})
	if why := s.nfs.Squashed(); why != "" {
		t.Fatal("the server is nobody but itself, though it could: " + why)
	}
	as := func(uid, gid uint32) *infs.FS {
		v, _, err := infs.Mount(context.Background(), s.url+"&uid="+itoa(uint16(uid))+"&gid="+itoa(uint16(gid)), s.opts)
		must(t, err)
		t.Cleanup(func() { must(t, v.Close()) })
		return v
	}
	ctx := context.Background()
	user, member, squashed := as(1234, 1234), as(1235, 4321), as(0, 0)
	if _, err := user.ReadFile("private"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a user reads root's file: %v", err)
	}
	if _, err := squashed.ReadFile("private"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a squashed root reads root's file: %v", err)
	}
	if b, err := member.ReadFile("group"); err != nil || string(b) != "group's" {
		t.Errorf("a member of the group: %q, %v", b, err)
	}
	if _, err := user.ReadFile("group"); !errors.Is(err, os.ErrPermission) {
		t.Errorf("another reads the group's file: %v", err)
	}
	for _, v := range []struct {
		fs  *infs.FS
		uid uint32
	}{{user, 1234}, {squashed, nfs.Nobody}} {
		f, err := v.fs.Create(ctx, "by"+itoa(uint16(v.uid)), 0o400)
		must(t, err)
		// The owner may write what he has just made read-only: his program has it open.
		_, err = f.Write([]byte("mine"))
		must(t, err)
		must(t, f.Close())
		i, err := f.Stat()
		must(t, err)
		if got := i.(*infs.Info); got.UID() != v.uid || got.Mode() != 0o400 {
			t.Errorf("owner %d, mode %v; want %d", got.UID(), got.Mode(), v.uid)
		}
	}
	if err := member.Remove(ctx, "by1234"); err != nil {
		t.Errorf("in a directory that everyone may write: %v", err)
	}
	if err := user.Chown(ctx, "group", 1234, 1234); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a user takes a file: %v", err)
	}
}

func TestReadOnlyAndSecurePorts(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: nfs.Rights{ReadOnly: true, Insecure: true, Squash: nfs.SquashNone}})
	v := s.mount(t)
	if err := v.Mkdir(context.Background(), "d", 0o755); !errors.Is(err, nfs3.ErrRofs) {
		t.Errorf("mkdir on a read-only export: %v", err)
	}
	// From a port that anyone may have.
	must(t, s.nfs.SetExports(nfs.Export{Path: "/data", Dir: s.dir}))
	c := rpcclient.NewClient(rpcclient.Stream(func(context.Context) (net.Conn, error) { return net.Dial("tcp", s.hostPort(t)) }), rpcclient.Options{})
	defer func() { must(t, c.Close()) }()
	r := &raw{t: t, c: c}
	if _, st := r.mount("/data"); st != mount3.ErrAcces {
		t.Errorf("from an unprivileged port: %v", st)
	}
}

// A retransmission is answered from the reply cache, on another connection too; the same XID with other arguments is
// another call.
func TestReplayIsNotExecutedTwice(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	must(t, os.WriteFile(filepath.Join(s.dir, "victim"), nil, 0o644))
	send := func(xid uint32, name string) nfs3.WccRes {
		nc, err := net.Dial("tcp", s.hostPort(t))
		must(t, err)
		defer func() { _ = nc.Close() }()
		must(t, nc.SetDeadline(time.Now().Add(patience)))
		h := oncrpc.Call{XID: xid, Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(nfs3.ProcRemove), Cred: oncrpc.Auth(r.cred)}
		a := nfs3.DirOp{Dir: root, Name: []byte(name)}
		msg := a.Append(h.Append(make([]byte, 4)))
		// In three fragments: a record is what counts.
		var wire []byte
		for i, cut := range [][2]int{{4, 9}, {9, 50}, {50, len(msg)}} {
			var mark [4]byte
			oncrpc.PutMark(mark[:], cut[1]-cut[0], i == 2)
			wire = append(append(wire, mark[:]...), msg[cut[0]:cut[1]]...)
		}
		_, err = nc.Write(wire)
		must(t, err)
		var mark [4]byte
		_, err = io.ReadFull(nc, mark[:])
		must(t, err)
		n, _ := oncrpc.ParseMark(mark[:])
		reply := make([]byte, n)
		_, err = io.ReadFull(nc, reply)
		must(t, err)
		x := xdr.NewReader(reply)
		_, err = oncrpc.ParseReply(&x)
		must(t, err)
		var w nfs3.WccRes
		w.Parse(&x)
		must(t, x.Err())
		return w
	}
	first := send(77, "victim")
	if first.Status != nfs3.OK {
		t.Fatal(first.Status)
	}
	if again := send(77, "victim"); again != first {
		t.Errorf("the retransmission was answered %v", again.Status)
	}
	if fresh := send(78, "victim"); fresh.Status != nfs3.ErrNoent {
		t.Errorf("a new call was answered %v", fresh.Status)
	}
	if other := send(77, "other"); other.Status != nfs3.ErrNoent {
		t.Errorf("another call with the old XID was answered %v", other.Status)
	}
	if n := s.rpc.Stats().Replays; n != 1 {
		t.Errorf("%d replays", n)
	}
}

func TestRefusals(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
	r := s.raw(t, 0, 0)
	for what, want := range map[[3]uint32]*oncrpc.ReplyError{
		{100227, 3, 3}:                {Accept: oncrpc.ProcUnavail},
		{100099, 1, 0}:                {Accept: oncrpc.ProgUnavail},
		{nfs3.Prog, 2, 1}:             {Accept: oncrpc.ProgMismatch},
		{nfs3.Prog, nfs3.Vers, 22}:    {Accept: oncrpc.ProcUnavail},
		{nfs3.Prog, nfs3.Vers, 1}:     {Accept: oncrpc.GarbageArgs},
		{mount3.Prog, mount3.Vers, 1}: {Accept: oncrpc.GarbageArgs},
	} {
		if _, err := r.call(what[0], what[1], what[2], nil); !errors.Is(err, want) || errors.Is(err, infs.ErrCredential) {
			t.Errorf("%v: %v, not %v", what, err, want)
		}
	}
	for v := range uint32(2) {
		if _, err := r.call([2]uint32{nfs3.Prog, 100227}[v], 3, 0, nil); err != nil {
			t.Errorf("NULL: %v", err)
		}
	}
	r.cred = rpcclient.Auth{Flavor: 6}
	if _, err := r.call(nfs3.Prog, 3, 1, nil); !errors.Is(err, &oncrpc.ReplyError{Denied: true, Auth: oncrpc.AuthTooWeak}) || !errors.Is(err, infs.ErrCredential) {
		t.Errorf("RPCSEC_GSS: %v", err)
	}
}

// What is no RPC ends its own connection and nobody else's.
func TestBadRecords(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
	v := s.mount(t)
	mark := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	for what, wire := range map[string][]byte{
		"HTTP":             []byte("GET / HTTP/1.0\r\n\r\n"),
		"a huge record":    mark(1<<31 | 1<<30),
		"huge in parts":    append(append(mark(4), 0, 0, 0, 0), mark(1<<31-1)...),
		"empty fragments":  bytes.Repeat(mark(0), 100),
		"a reply":          append(mark(1<<31|24), oncrpc.AppendReply(nil, 1, oncrpc.Success)...),
		"a short record":   append(mark(1<<31|8), 0, 0, 0, 1, 0, 0, 0, 0),
		"cut in the mark":  {0x80, 0},
		"cut in a record":  append(mark(1<<31|100), 1, 2, 3),
		"nothing":          nil,
		"long credentials": append(mark(1<<31|44), append(append(mark(1), mark(0)...), bytes.Repeat([]byte{0, 0, 0, 2}, 9)...)...),
	} {
		nc, err := net.Dial("tcp", s.hostPort(t))
		must(t, err)
		_, err = nc.Write(wire)
		must(t, err)
		must(t, nc.(*net.TCPConn).CloseWrite())
		must(t, nc.SetDeadline(time.Now().Add(patience)))
		if b, err := io.ReadAll(nc); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %x, %v", what, b, err)
		}
		must(t, nc.Close())
	}
	if _, err := v.Stat("."); err != nil {
		t.Errorf("another client: %v", err)
	}
}
