// Package gonfs_test uses the file client in the words of go-nfs-client, as that package's programs do, over both transports.
package gonfs_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	client "github.com/vmware/go-nfs-client/nfs"
	"github.com/vmware/go-nfs-client/nfs/rpc"
	"go.uber.org/goleak"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/nfs/gonfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 60 * time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func random(n int64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b)
	return b
}

// each runs a test over both transports. at is what DialMount takes, and dir is the server's: another view of what is done.
func each(t *testing.T, r nfs.Rights, f func(t *testing.T, at, dir string, v *gonfs.Target)) {
	r.Squash, r.Insecure = nfs.SquashNone, true
	for _, how := range []string{"tcp", "rdma"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			dev := iwarp.New(iwarp.Options{})
			t.Cleanup(func() { must(t, dev.Close()) })
			files := stand.NewFiles(t, stand.FileOptions{}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: r})
			var at string
			if how == "tcp" {
				_, at = files.TCP("127.0.0.1:0")
			} else {
				_, at = files.RDMA(dev, "127.0.0.1:0")
			}
			at = strings.Replace(at, "/data", "", 1)
			mount, err := gonfs.DialMount(at)
			must(t, err)
			v, err := mount.Mount("/data", rpc.NewAuthUnix("host", 0, 0).Auth())
			must(t, err)
			t.Cleanup(func() {
				must(t, v.Close())
				must(t, mount.Unmount())
				must(t, mount.Close())
			})
			v.SetTimeout(patience)
			f(t, at, dir, v)
		})
	}
}

func TestAProgramOfGoNFSClientRunsUnchanged(t *testing.T) {
	each(t, nfs.Rights{}, func(t *testing.T, _, dir string, v *gonfs.Target) {
		must(t, os.WriteFile(filepath.Join(dir, "was there"), nil, 0o600))
		must(t, program[*gonfs.File](v)("work"))
		l, err := os.ReadDir(dir)
		if must(t, err); len(l) != 1 {
			t.Errorf("the server has %v", l)
		}
	})
}

// Call and Write are go-nfs-client's own way to send.
func TestNoMethodIsMissing(t *testing.T) {
	swap := strings.NewReplacer("*nfs.Target", "*gonfs.Target", "*nfs.File", "*gonfs.File", "*nfs.Mount", "*gonfs.Mount")
	for _, c := range []struct{ theirs, ours any }{
		{new(client.Mount), new(gonfs.Mount)}, {new(client.Target), new(gonfs.Target)}, {new(client.File), new(gonfs.File)},
	} {
		theirs, ours := reflect.TypeOf(c.theirs), reflect.TypeOf(c.ours)
		for i := range theirs.NumMethod() {
			m := theirs.Method(i)
			if m.Name == "Call" || m.Name == "Write" && theirs != reflect.TypeFor[*client.File]() {
				continue
			}
			o, ok := ours.MethodByName(m.Name)
			if !ok {
				t.Errorf("%s has no %s", ours, m.Name)
			} else if want := swap.Replace(m.Type.String()); o.Type.String() != want {
				t.Errorf("%s of %s is %s, not %s", m.Name, ours, o.Type, want)
			}
		}
	}
}

func TestEachMethodOfATarget(t *testing.T) {
	each(t, nfs.Rights{}, func(t *testing.T, at, dir string, v *gonfs.Target) {
		t.Run("FSInfo", func(t *testing.T) {
			i, err := v.FSInfo()
			if must(t, err); i.RTMax < 4096 || i.WTPref < 4096 || i.Size == 0 || i.Properties == 0 {
				t.Errorf("%+v", i)
			}
		})
		t.Run("Mkdir", func(t *testing.T) {
			fh, err := v.Mkdir("d", 0o750)
			must(t, err)
			fi, err := os.Stat(filepath.Join(dir, "d"))
			if must(t, err); len(fh) == 0 || !fi.IsDir() || fi.Mode().Perm() != 0o750 {
				t.Errorf("%x, %v", fh, fi.Mode())
			}
		})
		t.Run("Create", func(t *testing.T) {
			fh, err := v.Create("d/f", 0o640)
			must(t, err)
			fi, err := os.Stat(filepath.Join(dir, "d/f"))
			if must(t, err); len(fh) == 0 || fi.Mode().Perm() != 0o640 {
				t.Errorf("%x, %v", fh, fi.Mode())
			}
			again, err := v.Create("d/f", 0o640)
			if must(t, err); !bytes.Equal(fh, again) {
				t.Errorf("%x, then %x", fh, again)
			}
		})
		t.Run("Lookup", func(t *testing.T) {
			must(t, os.WriteFile(filepath.Join(dir, "d/f"), []byte("seven b"), 0))
			i, fh, err := v.Lookup("/d/./f")
			must(t, err)
			a, ok := i.(*gonfs.Fattr)
			if !ok || a.Type != gonfs.NF3Reg || i.Size() != 7 || a.FileMode != 0o640 || a.Nlink != 1 || i.IsDir() || i.ModTime().IsZero() || len(fh) == 0 {
				t.Errorf("%+v, %x", i, fh)
			}
			if i, _, err = v.Lookup("."); err != nil || !i.IsDir() {
				t.Errorf("the mounted directory: %+v, %v", i, err)
			}
		})
		t.Run("ReadDirPlus", func(t *testing.T) {
			must(t, os.Mkdir(filepath.Join(dir, "many"), 0o755))
			for i := range 400 { // several answers of the server
				must(t, os.WriteFile(filepath.Join(dir, "many", strings.Repeat("x", 200)+strconv.Itoa(i)), nil, 0o600))
			}
			l, err := v.ReadDirPlus("many")
			must(t, err)
			seen := map[string]bool{}
			for _, e := range l {
				seen[e.FileName] = true
				if e.FileName != "." && e.FileName != ".." && (!e.Attr.IsSet || !e.Handle.IsSet || e.IsDir() || e.Attr.Attr.Fileid != e.FileId) {
					t.Fatalf("%+v", e)
				}
			}
			if len(l) != 402 || len(seen) != 402 || !seen["."] || !seen[".."] {
				t.Errorf("%d entries, %d names", len(l), len(seen))
			}
		})
		t.Run("OpenFile", func(t *testing.T) {
			for _, want := range []string{"first", "again"} { // what is there is not emptied
				f, err := v.OpenFile("made", 0o600)
				must(t, err)
				_, err = f.Write([]byte(want))
				must(t, err)
				if b, _ := os.ReadFile(filepath.Join(dir, "made")); string(b) != want {
					t.Errorf("%q before Close", b)
				}
				must(t, f.Close())
			}
		})
		t.Run("Open and Readlink", func(t *testing.T) {
			must(t, os.Symlink("../made", filepath.Join(dir, "d/link")))
			f, err := v.Open("d/link")
			must(t, err)
			if s, err := f.Readlink(); s != "../made" || err != nil {
				t.Errorf("%q, %v", s, err)
			}
			must(t, f.Close())
		})
		t.Run("Remove, RmDir and RemoveAll", func(t *testing.T) {
			must(t, v.Remove("made"))
			must(t, v.RemoveAll("d"))
			must(t, v.RemoveAll("not there"))
			_, err := v.Mkdir("e", 0o755)
			must(t, err)
			must(t, v.RmDir("e"))
			must(t, v.RemoveAll("many"))
			if l, err := os.ReadDir(dir); err != nil || len(l) != 0 {
				t.Errorf("%v is left, %v", l, err)
			}
		})
		t.Run("Open by a URL", func(t *testing.T) {
			must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("text"), 0o600))
			host, query, _ := strings.Cut(at, "?")
			w, err := gonfs.Open(t.Context(), host+"/data?"+query, infs.Options{})
			must(t, err)
			f, err := w.Open("f")
			must(t, err)
			b, err := io.ReadAll(f)
			if string(b) != "text" || err != nil {
				t.Errorf("%q, %v", b, err)
			}
			must(t, w.Close())
		})
	})
}

func TestEachMethodOfAFile(t *testing.T) {
	each(t, nfs.Rights{}, func(t *testing.T, _, dir string, v *gonfs.Target) {
		data := random(5_000_001)
		f, err := v.OpenFile("f", 0o600)
		must(t, err)
		for b := range slices.Chunk(data, 1_234_567) {
			n, err := f.Write(b)
			if must(t, err); n != len(b) {
				t.Fatalf("%d of %d", n, len(b))
			}
		}
		there := func() []byte {
			b, err := os.ReadFile(filepath.Join(dir, "f"))
			must(t, err)
			return b
		}
		if !bytes.Equal(there(), data) {
			t.Fatal("Write has returned, and the server has other bytes")
		}
		at, err := f.Seek(-1, io.SeekEnd)
		if must(t, err); at != int64(len(data))-1 {
			t.Errorf("the end is at %d", at)
		}
		at, err = f.Seek(-int64(len(data)-1)+10, io.SeekCurrent)
		if must(t, err); at != 10 {
			t.Errorf("from the end back to %d", at)
		}
		if _, err := f.Seek(-1, io.SeekStart); err == nil {
			t.Error("before the beginning")
		}
		var out bytes.Buffer
		n, err := io.Copy(&out, f) // by WriteTo
		if must(t, err); n != int64(len(data))-10 || !bytes.Equal(out.Bytes(), data[10:]) {
			t.Errorf("%d bytes from the 10th on", n)
		}
		if n, err := f.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("at the end: %d, %v", n, err)
		}
		_, err = f.Seek(100, io.SeekStart)
		must(t, err)
		_, err = io.Copy(f, strings.NewReader("in the middle")) // by ReadFrom
		must(t, err)
		copy(data[100:], "in the middle")
		if !bytes.Equal(there(), data) {
			t.Error("io.Copy has returned, and the server has other bytes")
		}
		if at, err = f.Seek(0, io.SeekCurrent); at != 113 || err != nil {
			t.Errorf("at %d, %v", at, err)
		}
		must(t, f.Close())
	})
}

func TestErrorsAreGoNFSClientsByNumber(t *testing.T) {
	each(t, nfs.Rights{}, func(t *testing.T, _, dir string, v *gonfs.Target) {
		must(t, os.MkdirAll(filepath.Join(dir, "d/e"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
		f, err := v.Open("f")
		must(t, err)
		must(t, os.Remove(filepath.Join(dir, "f")))
		must(t, os.WriteFile(filepath.Join(dir, "g"), nil, 0o600))
		second := func(_ any, err error) error { return err }
		for what, c := range map[string]struct {
			err  error
			want uint32
		}{
			"Open":               {second(v.Open("none")), gonfs.NFS3ErrNoEnt},
			"Lookup":             {func() error { _, _, err := v.Lookup("none/x"); return err }(), gonfs.NFS3ErrNoEnt},
			"Mkdir":              {second(v.Mkdir("d", 0o755)), gonfs.NFS3ErrExist},
			"Mkdir in a file":    {second(v.Mkdir("g/x", 0o755)), gonfs.NFS3ErrNotDir},
			"Create, long":       {second(v.Create(strings.Repeat("x", 256), 0o600)), gonfs.NFS3ErrNameTooLong},
			"ReadDirPlus":        {second(v.ReadDirPlus("g")), gonfs.NFS3ErrNotDir},
			"Remove":             {v.Remove("none"), gonfs.NFS3ErrNoEnt},
			"RmDir":              {v.RmDir("d"), gonfs.NFS3ErrNotEmpty},
			"RmDir of a file":    {v.RmDir("g"), gonfs.NFS3ErrNotDir},
			"RemoveAll":          {v.RemoveAll("g"), gonfs.NFS3ErrNotDir},
			"Read of what is no": {second(f.Read(make([]byte, 1))), gonfs.NFS3ErrStale},
			"Write":              {second(f.Write([]byte("x"))), gonfs.NFS3ErrStale},
			"Readlink":           {second(f.Readlink()), gonfs.NFS3ErrStale},
		} {
			want := client.NFS3Error(c.want)
			if e, ok := want.(*client.Error); ok {
				got, ok := c.err.(*gonfs.Error)
				if !ok || got.ErrorNum != c.want || got.ErrorString != e.ErrorString {
					t.Errorf("%s: %v, not %v", what, c.err, want)
				}
			} else if c.err != want {
				t.Errorf("%s: %v, not %v itself", what, c.err, want)
			}
		}
	})
}

func TestRefusalsOfAMount(t *testing.T) {
	each(t, nfs.Rights{ReadOnly: true}, func(t *testing.T, at, _ string, v *gonfs.Target) {
		mount, err := gonfs.DialMount(at)
		must(t, err)
		_, err = mount.Mount("/other", rpc.NewAuthUnix("host", 0, 0).Auth())
		var refused *infs.MountError
		if !errors.As(err, &refused) || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("no such export: %v", err)
		}
		_, err = v.Mkdir("d", 0o755)
		if e, ok := err.(*gonfs.Error); !ok || e.ErrorNum != gonfs.NFS3ErrROFS {
			t.Errorf("a read-only export: %v", err)
		}
		if _, err := gonfs.DialMount("iser://host"); err == nil {
			t.Error("another scheme")
		}
	})
}

// Who calls is what the program's credential says.
func TestTheCredentialIsTheProgramsOwn(t *testing.T) {
	each(t, nfs.Rights{}, func(t *testing.T, at, dir string, _ *gonfs.Target) {
		must(t, os.Chmod(dir, 0o777))
		mount, err := gonfs.DialMount(at)
		must(t, err)
		v, err := mount.Mount("/data", rpc.NewAuthUnix("host", 1001, 1002).Auth())
		must(t, err)
		_, err = v.Create("f", 0o600)
		must(t, err)
		i, _, err := v.Lookup("f")
		must(t, err)
		if a := i.(*gonfs.Fattr); a.UID != 1001 || a.GID != 1002 {
			t.Errorf("it belongs to %d, %d", a.UID, a.GID)
		}
		must(t, v.Close())
	})
}
