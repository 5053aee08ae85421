// Package nfs holds the file target against clients that none of us wrote: libnfs's tools and go-nfs-client. Both ask the
// portmapper of the server's address, so each test has an address of 127.0.0.0/8 for itself.
package nfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	gonfs "github.com/vmware/go-nfs-client/nfs"
	gorpc "github.com/vmware/go-nfs-client/nfs/rpc"
	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// own is an address of this machine that another run of these tests beside this one does not have.
func own() string {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(254)), byte(rand.IntN(256)), byte(1 + rand.IntN(254))}).String()
}

// serve exports a new directory as /data at addr, with rpcbind on port 111 if binder is set.
func serve(t *testing.T, addr string, binder bool) (dir, at string) {
	t.Helper()
	dir = t.TempDir()
	b, o := rpcserver.NewBinder(), stand.FileOptions{}
	if binder {
		o.More = []rpcserver.Program{b}
	}
	s := stand.NewFiles(t, o, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: stand.Everyone})
	where, _ := s.TCP(net.JoinHostPort(addr, "0"))
	if binder {
		for _, p := range s.NFS.Programs() {
			b.Set(p, "tcp", where)
		}
		s.TCP(net.JoinHostPort(addr, "111"))
	}
	return dir, strconv.Itoa(int(where.Port()))
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	c := exec.CommandContext(ctx, need.Tool(t, name, "libnfs-utils"), args...) // or a path
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("%s %v: %v\n%s%s", name, args, err, out.String(), errs.String())
	}
	return out.String()
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// libnfs copies in and out and lists, with the ports in the URL and through the portmapper.
func TestLibnfs(t *testing.T) {
	for _, binder := range []bool{false, true} {
		name, addr := "ports in the URL", "127.0.0.1"
		if binder {
			name, addr = "portmapper", own()
		}
		t.Run(name, func(t *testing.T) {
			need.Tool(t, "nfs-cp", "libnfs-utils")
			if binder {
				need.Root(t)
			}
			dir, port := serve(t, addr, binder)
			url := func(file string) string {
				u := "nfs://" + addr + "/data" + file
				if !binder {
					u += "?nfsport=" + port + "&mountport=" + port
				}
				return u
			}
			local := t.TempDir()
			want := random(20<<20 + 12345)
			if err := os.WriteFile(filepath.Join(local, "big"), want, 0o600); err != nil {
				t.Fatal(err)
			}
			run(t, "nfs-cp", filepath.Join(local, "big"), url("/big"))
			got, err := os.ReadFile(filepath.Join(dir, "big"))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Fatalf("copied in: %d bytes, %v", len(got), err)
			}
			run(t, "nfs-cp", url("/big"), filepath.Join(local, "back"))
			if got, err = os.ReadFile(filepath.Join(local, "back")); err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Fatalf("copied out: %d bytes, %v", len(got), err)
			}
			if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "sub", "small"), []byte("small\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if out := run(t, "nfs-ls", url("")); !strings.Contains(out, "big") || !strings.Contains(out, "sub") {
				t.Errorf("nfs-ls:\n%s", out)
			}
			if out := run(t, "nfs-cat", url("/sub/small")); out != "small\n" {
				t.Errorf("nfs-cat: %q", out)
			}
		})
	}
}

// A program on libnfs's API does what applications do, and checks each step itself.
func TestLibnfsAPI(t *testing.T) {
	gcc := need.Tool(t, "gcc", "gcc")
	need.File(t, "/usr/include/nfsc/libnfs.h", "libnfs-dev")
	api := filepath.Join(t.TempDir(), "api")
	if out, err := exec.Command(gcc, "-O1", "-Wall", "-Werror", "-o", api, "testdata/api.c", "-lnfs").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	dir, port := serve(t, "127.0.0.1", false)
	if out := run(t, api, "nfs://127.0.0.1/data?nfsport="+port+"&mountport="+port); out != "all right\n" {
		t.Errorf("it says %q", out)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "d/g")); err != nil || len(b) != 5 {
		t.Errorf("left over: %q, %v", b, err)
	}
}

func TestGoNFSClient(t *testing.T) {
	need.Root(t) // for port 111
	addr := own()
	dir, _ := serve(t, addr, true)
	m, err := gonfs.DialMount(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	auth := gorpc.NewAuthUnix("test", 0, 0)
	v, err := m.Mount("/data", auth.Auth())
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.Mkdir("d", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Mkdir("d", 0o755); !os.IsExist(err) {
		t.Errorf("mkdir of what is there: %v", err)
	}
	want := random(3<<20 + 7)
	f, err := v.OpenFile("d/f", 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, bytes.NewReader(want)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "d/f")); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("on disk: %d bytes, %v", len(got), err)
	}
	r, err := v.Open("d/f")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("read back: %d bytes, %v", len(got), err)
	}
	for i := range 300 {
		if err := os.WriteFile(filepath.Join(dir, "d", strings.Repeat("x", 100+i%100)+string(rune('a'+i/100))), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := v.ReadDirPlus("d")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, e := range l {
		if e.Name() != "." && e.Name() != ".." {
			files++
			if !e.Attr.IsSet || !e.Handle.IsSet {
				t.Errorf("%s comes without attributes or handle", e.Name())
			}
		}
	}
	if files != 301 {
		t.Errorf("%d files of 301 are listed", files)
	}
	if err := v.Remove("d/f"); err != nil {
		t.Error(err)
	}
	if _, _, err := v.Lookup("d/f"); !os.IsNotExist(err) {
		t.Errorf("lookup of what was removed: %v", err)
	}
	if err := v.RemoveAll("d"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "d")); !os.IsNotExist(err) {
		t.Errorf("after RemoveAll: %v", err)
	}
}
