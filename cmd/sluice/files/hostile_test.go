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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// serveTCP exports a directory through a proxy that can change what the server says, in place.
func serveTCP(t *testing.T, says func(b []byte)) (dir, url string) {
	t.Helper()
	dir = t.TempDir()
	at, _ := stand.NewFiles(t, stand.FileOptions{}, nfs.Export{Path: "/data", Dir: dir, Async: true, Rights: stand.Everyone}).TCP("127.0.0.1:0")
	p, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		for {
			c, err := p.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", at.String())
			if err != nil {
				c.Close()
				return
			}
			go func() {
				_, _ = io.Copy(up, c)
				up.Close()
			}()
			go func() {
				defer c.Close()
				b := make([]byte, 1<<20)
				for {
					n, err := up.Read(b)
					if says(b[:n]); n > 0 {
						if _, err := c.Write(b[:n]); err != nil {
							return
						}
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		<-gone
	})
	_, port, err := net.SplitHostPort(p.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return dir, "nfs://127.0.0.1:" + port + "/data?mountport=" + port
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func content(t *testing.T, path, want string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != want {
		t.Errorf("%s holds %.40q (%v), want %.40q", path, b, err, want)
	}
}

// alone fails when a directory holds other names.
func alone(t *testing.T, dir string, want ...string) {
	t.Helper()
	l, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range l {
		names = append(names, e.Name())
	}
	if strings.Join(names, " ") != strings.Join(want, " ") {
		t.Errorf("%s holds %v, want %v", dir, names, want)
	}
}

// Whatever names and links a server lists, a copy of a tree from it writes below its target only.
func TestACopyStaysBelowItsTarget(t *testing.T) {
	t.Run("names that are paths", func(t *testing.T) {
		for _, name := range []string{"../../victim", "x/../victimx", "/tmp/victim1", "..///victim/"} {
			dir, url := serveTCP(t, func(b []byte) { copy(b, bytes.ReplaceAll(b, []byte("HARMLESSNAME"), []byte(name))) })
			put(t, filepath.Join(dir, "HARMLESSNAME"), "hostile")
			put(t, filepath.Join(dir, "sub/HARMLESSNAME"), "hostile")
			local := t.TempDir()
			put(t, filepath.Join(local, "victim"), "kept")
			var bad *infs.NameError
			if out, err := sluice(t, "cp", "-q", "-r", url, filepath.Join(local, "a/b")); !errors.As(err, &bad) {
				t.Errorf("%s: %v %s", name, err, out)
			}
			content(t, filepath.Join(local, "victim"), "kept")
			alone(t, local, "a", "victim")
			if _, err := sluice(t, "rm", "-r", "--yes", strings.Replace(url, "/data", "/data/sub", 1)); err == nil {
				t.Errorf("rm -r of a directory that holds %s succeeds", name)
			}
		}
	})
	// A link of an earlier copy is a directory, or a file, at the server by now.
	t.Run("links", func(t *testing.T) {
		dir, url := serveTCP(t, func([]byte) {})
		local, outside := t.TempDir(), t.TempDir()
		put(t, filepath.Join(outside, "file"), "kept")
		to := filepath.Join(local, "data") // what the export is called
		if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "d")), os.Symlink(filepath.Join(outside, "file"), filepath.Join(dir, "f"))); err != nil {
			t.Fatal(err)
		}
		if _, err := sluice(t, "cp", "-q", "-r", url, local); err != nil {
			t.Fatal(err)
		}
		if l, err := os.Readlink(filepath.Join(to, "d")); l != outside {
			t.Errorf("the link leads to %q (%v)", l, err)
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "d")), os.Remove(filepath.Join(dir, "f"))); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, "f"), "hostile")
		if _, err := sluice(t, "cp", "-q", "-r", url, local); err != nil {
			t.Errorf("a file in place of a link: %v", err)
		}
		content(t, filepath.Join(to, "f"), "hostile")
		put(t, filepath.Join(dir, "d/file"), "hostile")
		put(t, filepath.Join(dir, "d/more"), "hostile")
		if _, err := sluice(t, "cp", "-q", "-r", url, local); err == nil {
			t.Error("a directory was copied through a link that leads away")
		}
		content(t, filepath.Join(outside, "file"), "kept")
		alone(t, outside, "file")
	})
}

// The same holds for a target at another server, though its own client would follow a link there that the hostile one has listed
// just before.
func TestACopyToAServerStaysBelowItsTarget(t *testing.T) {
	for _, second := range []string{"a directory", "a file"} {
		t.Run(second, func(t *testing.T) {
			const name, target = "SAMENAME", "../other/it"
			var dir string
			var shown []byte
			swap := sync.OnceFunc(func() {
				if err := errors.Join(os.Remove(filepath.Join(dir, name)), os.Rename(filepath.Join(dir, string(shown)), filepath.Join(dir, name))); err != nil {
					t.Error(err)
				}
			})
			dir, url := serveTCP(t, func(b []byte) {
				copy(b, bytes.ReplaceAll(b, shown, []byte(name)))
				if bytes.Contains(b, []byte(target)) { // the link has been read
					swap()
				}
			})
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			// What is listed after the link has a name that the proxy makes the link's.
			for i := 0; shown == nil; i++ {
				path := filepath.Join(dir, fmt.Sprintf("%s%04d", "NEXT", i))
				if second == "a file" {
					put(t, path, "hostile")
				} else {
					put(t, filepath.Join(path, "f"), "hostile")
				}
				d, err := os.Open(dir)
				if err != nil {
					t.Fatal(err)
				}
				l, err := d.Readdirnames(-1)
				if err = errors.Join(err, d.Close()); err != nil {
					t.Fatal(err)
				}
				if l[0] == name {
					shown = []byte(filepath.Base(path))
				} else if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			away, there := serve(t)
			put(t, filepath.Join(away, "other/it/f"), "kept")
			if second == "a file" {
				if err := os.RemoveAll(filepath.Join(away, "other/it")); err != nil {
					t.Fatal(err)
				}
				put(t, filepath.Join(away, "other/it"), "kept")
			}
			_, err := sluice(t, "cp", "-q", "-r", url, there+"/new")
			var link *LinkError
			if second == "a file" {
				if err != nil {
					t.Error(err)
				}
				content(t, filepath.Join(away, "other/it"), "kept")
				content(t, filepath.Join(away, "new", name), "hostile")
				return
			}
			if !errors.As(err, &link) {
				t.Errorf("%v", err)
			}
			content(t, filepath.Join(away, "other/it/f"), "kept")
			alone(t, filepath.Join(away, "other/it"), "f")
		})
	}
}

// A directory is not copied into itself, by whatever name of its server.
func TestACopyIntoItselfIsRefusedByAnyNameOfTheServer(t *testing.T) {
	dir, url := serve(t)
	put(t, filepath.Join(dir, "a/b/f"), "kept")
	other := strings.Replace(url, "127.0.0.1", "localhost", 1)
	if other == url {
		t.Fatal(url)
	}
	_, err := sluice(t, "cp", "-q", "-r", url+"/a", other+"/a/b/c")
	var ee ui.ExitError
	if !errors.As(err, &ee) || ee.Code != ui.CodeUsage {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "a/b/c/b/c/b")); err == nil {
		t.Error("it was copied into itself")
	}
}

func TestACopyOfAFileToItselfIsRefused(t *testing.T) {
	dir, url := serve(t)
	put(t, filepath.Join(dir, "d/f"), "kept")
	if err := os.Link(filepath.Join(dir, "d/f"), filepath.Join(dir, "other")); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{url + "/d/f", url + "/d/f"}, {url + "/d/f", url + "/d"}, {url + "/d/f", url + "/other"},
		{"-r", url + "/d", url + "/d"}, {"-r", url + "/d", url + "/d/e"}, {"-r", url + "/d", url + "/d/e/g"}, {"-r", url, url + "/d/e"},
	} {
		_, err := sluice(t, append([]string{"cp", "-q"}, args...)...)
		var ee ui.ExitError
		if !errors.As(err, &ee) || ee.Code != ui.CodeUsage {
			t.Errorf("cp %v: %v", args, err)
		}
		content(t, filepath.Join(dir, "d/f"), "kept")
		alone(t, filepath.Join(dir, "d"), "f")
	}
	if _, err := sluice(t, "cp", "-q", "-r", url+"/d", url+"/dd"); err != nil { // a name that only begins alike
		t.Error(err)
	}
	content(t, filepath.Join(dir, "dd/f"), "kept")
}

// A copy that is interrupted leaves the file that was there, or none.
func TestAnInterruptedCopyLeavesAFileWholeOrNotAtAll(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<20)
	run := func(ctx context.Context, stdin io.Reader, args ...string) error {
		cp := &cobra.Command{Use: "cp A B", Args: cobra.ExactArgs(2), SilenceErrors: true, SilenceUsage: true}
		cp.Flags().BoolP("quiet", "q", false, "")
		ui.AddOutputFlag(cp)
		ExtendCopy(cp)
		cp.SetIn(stdin)
		cp.SetOut(io.Discard)
		cp.SetErr(io.Discard)
		cp.SetArgs(append([]string{"-q"}, args...))
		return cp.ExecuteContext(ctx)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var seen atomic.Int64
	var stop atomic.Pointer[func()]
	dir, url := serveTCP(t, func(b []byte) {
		if f := stop.Load(); seen.Add(int64(len(b))) > 8<<20 && f != nil {
			(*f)()
		}
	})
	file := func(name string) string { return strings.Replace(url, "/data", "/data/"+name, 1) }
	local := t.TempDir()
	put(t, filepath.Join(dir, "big"), big)
	put(t, filepath.Join(dir, "old"), "kept")
	put(t, filepath.Join(local, "old"), "kept")
	for _, name := range []string{"old", "new"} {
		down, cut := context.WithCancel(ctx)
		f := func() { cut() }
		seen.Store(0)
		stop.Store(&f)
		if err := run(down, nil, file("big"), filepath.Join(local, name)); err == nil {
			t.Error("an interrupted copy from the server ended well")
		}
		stop.Store(nil)
		up, end := context.WithCancel(ctx)
		if err := run(up, io.MultiReader(strings.NewReader(big), &stopper{end}), "-", file(name)); err == nil {
			t.Error("an interrupted copy to the server ended well")
		}
		end()
	}
	alone(t, local, "old")
	alone(t, dir, "big", "old")
	content(t, filepath.Join(local, "old"), "kept")
	content(t, filepath.Join(dir, "old"), "kept")
	for _, name := range []string{"old", "new"} {
		if err := errors.Join(run(ctx, nil, file("big"), filepath.Join(local, name)), run(ctx, nil, filepath.Join(local, name), file(name))); err != nil {
			t.Error(err)
		}
		content(t, filepath.Join(local, name), big)
		content(t, filepath.Join(dir, name), big)
	}
}

// stopper ends a copy's context before it ends.
type stopper struct{ stop func() }

func (s *stopper) Read([]byte) (int, error) {
	s.stop()
	return 0, io.EOF
}
