package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve exports a directory over the software RNIC.
func serve(t *testing.T) (dir, url string) {
	t.Helper()
	dir = t.TempDir()
	dev := iwarp.New(iwarp.Options{})
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	_, url = stand.NewFiles(t, stand.FileOptions{}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: stand.Everyone}).RDMA(dev, "127.0.0.1:0")
	return dir, url
}

func sluice(t *testing.T, args ...string) (string, error) {
	t.Helper()
	root := &cobra.Command{Use: "sluice", SilenceUsage: true, SilenceErrors: true}
	ui.AddOutputFlag(root)
	cp := &cobra.Command{Use: "cp A B", Args: cobra.ExactArgs(2), RunE: func(*cobra.Command, []string) error { return errors.New("volumes") }}
	cp.Flags().BoolP("quiet", "q", false, "")
	root.AddCommand(append(Commands(), ExtendCopy(cp))...)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := root.ExecuteContext(ctx)
	return out.String(), err
}

func TestCommands(t *testing.T) {
	dir, url := serve(t)
	local := t.TempDir()
	big := bytes.Repeat([]byte("0123456789abcdef"), 200_001)
	if err := os.MkdirAll(filepath.Join(local, "src/deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"src/big": big, "src/deep/small": []byte("small\n")} {
		if err := os.WriteFile(filepath.Join(local, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ok := func(args ...string) string {
		t.Helper()
		out, err := sluice(t, args...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	if err := os.Symlink("../big", filepath.Join(local, "src/deep/link")); err != nil {
		t.Fatal(err)
	}
	ok("mkdir", "-p", url+"/a/b")
	ok("cp", "-q", "-r", filepath.Join(local, "src"), url+"/a/b")
	if got, err := os.ReadFile(filepath.Join(dir, "a/b/src/big")); err != nil || !bytes.Equal(got, big) {
		// A directory that is the mount itself is filled, not nested.
		if got, err = os.ReadFile(filepath.Join(dir, "a/b/big")); err != nil || !bytes.Equal(got, big) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
	if out := ok("ls", url+"/a/b"); !strings.Contains(out, "big") || !strings.Contains(out, "deep") {
		t.Errorf("ls:\n%s", out)
	}
	if out := ok("cat", url+"/a/b/deep/small"); out != "small\n" {
		t.Errorf("cat: %q", out)
	}
	ok("cp", "-q", "-r", filepath.Join(local, "src"), url+"/a/b") // once more, over what is there
	ok("cp", "-q", "-r", url+"/a/b/deep", filepath.Join(local, "deep"))
	for _, l := range []string{filepath.Join(dir, "a/b/deep/link"), filepath.Join(local, "deep/link")} {
		if got, err := os.Readlink(l); got != "../big" {
			t.Errorf("%s leads to %q, %v", l, got, err)
		}
	}
	if out := ok("tree", url); !strings.Contains(out, "└── small") || !strings.Contains(out, "3 directories, 3 files") {
		t.Errorf("tree:\n%s", out)
	}
	ok("cp", "-q", url+"/a/b/big", filepath.Join(local, "back"))
	if got, err := os.ReadFile(filepath.Join(local, "back")); err != nil || !bytes.Equal(got, big) {
		t.Errorf("copied back: %d bytes, %v", len(got), err)
	}
	if _, err := sluice(t, "rm", url+"/a"); err == nil {
		t.Error("a full directory was removed without -r")
	}
	ok("rm", "-r", "--yes", url+"/a")
	if l, err := os.ReadDir(dir); err != nil || len(l) != 0 {
		t.Errorf("after rm -r: %v, %v", l, err)
	}
	var code ui.ExitError
	if _, err := sluice(t, "cat", url+"/nothing"); !errors.As(err, &code) || code.Code != ui.CodeRefused {
		t.Errorf("cat of nothing: %v", err)
	}
	if _, err := sluice(t, "ls", "iser://x"); !errors.As(err, &code) || code.Code != ui.CodeUsage {
		t.Errorf("ls of a volume: %v", err)
	}
}

// serveGateway has a gateway to a server until end is called.
func serveGateway(t *testing.T, url string) (ctx context.Context, port string, end func()) {
	t.Helper()
	dev := iwarp.New(iwarp.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	at := make(chan net.Addr, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- gateway(ctx, url, "127.0.0.1:0", false, infs.Options{Device: dev}, func(a net.Addr) { at <- a })
	}()
	end = func() {
		cancel()
		if err := errors.Join(<-ended, dev.Close()); err != nil {
			t.Error(err)
		}
	}
	select {
	case a := <-at:
		return ctx, fmt.Sprint(a.(*net.TCPAddr).Port), end
	case err := <-ended:
		cancel()
		t.Fatal(errors.Join(err, dev.Close()))
	}
	return nil, "", nil
}

func TestGateway(t *testing.T) {
	dir, url := serve(t)
	ctx, port, end := serveGateway(t, url)
	defer end()
	v, _, err := infs.Mount(ctx, "nfs://127.0.0.1:"+port+"/data?mountport="+port, infs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("gateway!"), 300_000)
	f, err := v.Create(ctx, "f", 0o600)
	if err == nil {
		_, err = f.Write(want)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("on disk: %d bytes, %v", len(got), err)
	}
	if got, err := v.ReadFile("f"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read back: %d bytes, %v", len(got), err)
	}
	if err := v.Symlink(ctx, strings.Repeat("t/", 1500), "l"); err != nil {
		t.Error(err)
	}
	if s, err := v.ReadLink("l"); err != nil || len(s) != 3000 {
		t.Errorf("link of %d bytes, %v", len(s), err)
	}
	if l, err := v.ReadDir("."); err != nil || len(l) != 2 {
		t.Errorf("%v, %v", l, err)
	}
	if err := v.Remove(ctx, "nothing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("remove of nothing: %v", err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

// A client that lost a connection repeats on another what was not answered. What it has changed already the gateway answers as
// before, and a WRITE that it has repeated is not made when it comes by the older connection after all.
func TestGatewayMakesNoChangeTwice(t *testing.T) {
	dir, url := serve(t)
	_, port, end := serveGateway(t, url)
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	dial := func() net.Conn {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	xid := uint32(0)
	send := func(c net.Conn, prog, vers, proc uint32, args []byte) {
		t.Helper()
		sys := oncrpc.Sys{}
		k := oncrpc.Call{XID: xid, Prog: prog, Vers: vers, Proc: proc, Cred: oncrpc.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "test")}}
		b := append(k.Append(make([]byte, oncrpc.MarkLen)), args...)
		oncrpc.PutMark(b, len(b)-oncrpc.MarkLen, true)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(c net.Conn) (xdr.Reader, error) {
		var mark [oncrpc.MarkLen]byte
		if _, err := io.ReadFull(c, mark[:]); err != nil {
			return xdr.Reader{}, err
		}
		n, _ := oncrpc.ParseMark(mark[:])
		b := make([]byte, n)
		_, err := io.ReadFull(c, b)
		return xdr.NewReader(b[oncrpc.ReplyLen:]), err
	}
	call := func(c net.Conn, proc nfs3.Proc, args []byte) nfs3.Status {
		t.Helper()
		send(c, nfs3.Prog, nfs3.Vers, uint32(proc), args)
		r, err := hear(c)
		if err != nil {
			t.Fatal(err)
		}
		st := nfs3.Status(r.Uint32())
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
		return st
	}
	old := dial()
	defer old.Close()
	path := mount3.PathArgs{Path: []byte("/data")}
	send(old, mount3.Prog, mount3.Vers, mount3.ProcMnt, path.Append(nil))
	res, err := hear(old)
	if err != nil {
		t.Fatal(err)
	}
	var m mount3.MntRes
	if m.Parse(&res); m.Status != mount3.OK {
		t.Fatal(m.Status)
	}
	for _, name := range []string{"gone", "f"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	next := dial()
	defer next.Close()

	xid++
	op := nfs3.DirOp{Dir: m.FH, Name: []byte("gone")}
	if st := call(old, nfs3.ProcRemove, op.Append(nil)); st != nfs3.OK {
		t.Fatal(st)
	}
	if st := call(next, nfs3.ProcRemove, op.Append(nil)); st != nfs3.OK {
		t.Errorf("the repetition of a REMOVE is answered %v: it was made once more", st)
	}

	xid++
	send(old, nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcLookup), (&nfs3.DirOp{Dir: m.FH, Name: []byte("f")}).Append(nil))
	if res, err = hear(old); err != nil {
		t.Fatal(err)
	}
	var l nfs3.LookupRes
	if l.Parse(&res); l.Status != nfs3.OK {
		t.Fatal(l.Status)
	}
	write := func(text string) []byte {
		a := nfs3.WriteArgs{FH: l.FH, Count: uint32(len(text)), Len: uint32(len(text)), Stable: nfs3.FileSync}
		return append(a.Append(nil), text...)
	}
	xid++
	first := write("repeated")
	if st := call(next, nfs3.ProcWrite, first); st != nfs3.OK {
		t.Fatal(st)
	}
	before := xid
	xid++
	if st := call(next, nfs3.ProcWrite, write("newer...")); st != nfs3.OK {
		t.Fatal(st)
	}
	xid = before
	send(old, nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcWrite), first)
	if _, err := hear(old); err == nil {
		t.Error("a WRITE was made after its repetition was answered")
	}
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != "newer..." {
		t.Errorf("%q, %v", got, err)
	}
}
