package fusedir_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
)

var overs = []string{"tcp", "iwarp"}

// A tree written through the mount is on the server as it was, and read through a second mount as it is.
func TestTree(t *testing.T) {
	for _, over := range overs {
		t.Run(over, func(t *testing.T) {
			s := newServer(t, over, false)
			c := s.mount(t, fusedir.Options{})
			want := makeTree(t, c.path("tree"))
			same(t, want, sums(t, filepath.Join(s.dir, "tree")))
			same(t, want, sums(t, c.path("tree")))
			same(t, want, sums(t, s.mount(t, fusedir.Options{ReadOnly: true}).path("tree")))
			must(t, os.RemoveAll(c.path("tree")))
			if l, err := os.ReadDir(s.dir); err != nil || len(l) > 0 {
				t.Fatalf("the server still has %v, %v", l, err)
			}
		})
	}
}

// makeTree writes directories, files of many sizes, links of both kinds, and returns what there should be.
func makeTree(t testing.TB, root string) map[string]string {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	for d := range 4 {
		dir := filepath.Join(root, fmt.Sprintf("dir %d", d), "below")
		must(t, os.MkdirAll(dir, 0o755))
		for i := range 60 {
			n := rng.IntN(1 << (4 + i%14))
			if i == 0 {
				n = 3<<20 + 17
			}
			b := make([]byte, n)
			for k := range b {
				b[k] = byte(rng.Uint32())
			}
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%03d", i)), b, os.FileMode(0o600+i%0o70)))
		}
		must(t, os.Symlink("file-001", filepath.Join(dir, "symbolic")))
		must(t, os.Link(filepath.Join(dir, "file-002"), filepath.Join(dir, "hard")))
	}
	return sums(t, root)
}

// sums describes a tree: type, mode, links and contents of every name.
func sums(t testing.TB, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		what := fi.Mode().String()
		switch {
		case fi.Mode()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			if err != nil {
				return err
			}
			what += " -> " + to
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what += fmt.Sprintf(" %d links, %d bytes, %x", fi.Sys().(*syscall.Stat_t).Nlink, len(b), sha256.Sum256(b))
		}
		out[rel] = what
		return nil
	}))
	return out
}

func same(t testing.TB, want, got map[string]string) {
	t.Helper()
	if len(want) != len(got) {
		t.Errorf("%d names where %d are wanted", len(got), len(want))
	}
	for k, w := range want {
		if got[k] != w {
			t.Fatalf("%s is %q, want %q", k, got[k], w)
		}
	}
}

// What programs expect of a file system, each rule against the server's own directory.
func TestBehaviour(t *testing.T) {
	s := newServer(t, "tcp", false)
	c := s.mount(t, fusedir.Options{})
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	p := c.path
	must(t, os.WriteFile(p("a"), []byte("hello"), 0o640))
	must(t, os.Mkdir(p("d"), 0o750))

	_, err := os.Stat(p("missing"))
	is("stat of nothing", err, syscall.ENOENT)
	is("mkdir twice", os.Mkdir(p("d"), 0o755), syscall.EEXIST)
	must(t, os.WriteFile(p("d", "x"), nil, 0o600))
	is("rmdir of a full directory", unix.Rmdir(p("d")), syscall.ENOTEMPTY)
	is("unlink of a directory", unix.Unlink(p("d")), syscall.EISDIR)
	is("rmdir of a file", unix.Rmdir(p("a")), syscall.ENOTDIR)
	is("rename of a file onto a directory", unix.Rename(p("a"), p("d")), syscall.EISDIR)
	_, err = os.Open(p("a", "b"))
	is("a file as a directory", err, syscall.ENOTDIR)
	_, err = os.OpenFile(p("a"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	is("O_EXCL of what exists", err, syscall.EEXIST)
	f, err := os.OpenFile(p("excl"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o604)
	must(t, err)
	must(t, f.Close())
	if fi, err := os.Stat(filepath.Join(s.dir, "excl")); err != nil || fi.Mode().Perm() != 0o604 || time.Since(fi.ModTime()).Abs() > time.Hour {
		t.Errorf("a file made with O_EXCL is %v, %v", fi.Mode(), err)
	}
	is("a name too long", os.WriteFile(p(string(bytes.Repeat([]byte("n"), 256))), nil, 0o600), syscall.ENAMETOOLONG)
	is("an exclusive rename", unix.Renameat2(unix.AT_FDCWD, p("a"), unix.AT_FDCWD, p("b"), unix.RENAME_NOREPLACE), syscall.EINVAL)
	_, err = unix.Getxattr(p("a"), "user.x", nil)
	is("getxattr", err, syscall.EOPNOTSUPP)
	is("setxattr", unix.Setxattr(p("a"), "user.x", []byte("1"), 0), syscall.EOPNOTSUPP)

	must(t, os.Chmod(p("a"), 0o6755|os.ModeSetuid))
	if fi, err := os.Stat(filepath.Join(s.dir, "a")); err != nil || fi.Mode()&os.ModeSetuid == 0 {
		t.Errorf("setuid did not arrive: %v, %v", fi.Mode(), err)
	}
	when := time.Unix(1_500_000_000, 123_456_789)
	must(t, os.Chtimes(p("a"), when, when))
	if fi, err := os.Stat(p("a")); err != nil || !fi.ModTime().Equal(when) {
		t.Errorf("the time is %v, %v", fi.ModTime(), err)
	}
	is("a time before NFS's", os.Chtimes(p("a"), when, time.Unix(-1, 0)), syscall.EOVERFLOW)
	must(t, os.Truncate(p("a"), 1<<32+5))
	if fi, err := os.Stat(filepath.Join(s.dir, "a")); err != nil || fi.Size() != 1<<32+5 {
		t.Errorf("truncated to %v, %v", fi, err)
	}
	must(t, os.Truncate(p("a"), 3))
	if b, err := os.ReadFile(p("a")); err != nil || string(b) != "hel" {
		t.Errorf("after truncate: %q, %v", b, err)
	}
	must(t, unix.Mkfifo(p("fifo"), 0o600))
	if fi, err := os.Lstat(filepath.Join(s.dir, "fifo")); err != nil || fi.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("mkfifo made %v, %v", fi, err)
	}
	var st, at unix.Statfs_t
	must(t, unix.Statfs(c.dir, &st))
	must(t, unix.Statfs(s.dir, &at))
	if got, want := st.Blocks*uint64(st.Bsize), at.Blocks*uint64(at.Bsize); got>>20 != want>>20 || st.Namelen != 255 {
		t.Errorf("statfs says %d bytes, the server has %d", got, want)
	}
	// An open file outlives its name, and two names are one file.
	f, err = os.OpenFile(p("a"), os.O_RDWR, 0)
	must(t, err)
	must(t, os.Remove(p("a")))
	_, err = os.Stat(p("a"))
	is("a removed file", err, syscall.ENOENT)
	_, err = f.WriteAt([]byte("still here"), 0)
	must(t, err)
	b := make([]byte, 10)
	if _, err := f.ReadAt(b, 0); err != nil || string(b) != "still here" {
		t.Errorf("a removed, open file reads %q, %v", b, err)
	}
	must(t, f.Close())
	gone := func() bool {
		l, err := filepath.Glob(filepath.Join(s.dir, ".nfs*"))
		return err == nil && len(l) == 0
	}
	for end := time.Now().Add(patience); !gone(); { // the kernel releases behind close's back
		if time.Now().After(end) {
			t.Fatal("the hidden file was never removed")
		}
		time.Sleep(5 * time.Millisecond)
	}
	must(t, os.WriteFile(p("one"), []byte("1"), 0o600))
	must(t, os.Link(p("one"), p("two")))
	i1, err1 := os.Stat(p("one"))
	i2, err2 := os.Stat(p("two"))
	if err1 != nil || err2 != nil || !os.SameFile(i1, i2) || i1.Sys().(*syscall.Stat_t).Nlink != 2 {
		t.Errorf("a hard link: %v, %v, %v, %v", i1, i2, err1, err2)
	}
	must(t, os.Rename(p("one"), p("d", "moved")))
	if b, err := os.ReadFile(p("d", "moved")); err != nil || string(b) != "1" {
		t.Errorf("a renamed file reads %q, %v", b, err)
	}
}

// A directory of many entries is listed whole, once each, and again from the start.
func TestLargeDirectory(t *testing.T) {
	s := newServer(t, "iwarp", false)
	const n = 3000
	for i := range n {
		must(t, os.WriteFile(filepath.Join(s.dir, fmt.Sprintf("a rather long name, so that a listing takes many replies %05d", i)), nil, 0o600))
	}
	c := s.mount(t, fusedir.Options{})
	d, err := os.Open(c.dir)
	must(t, err)
	defer d.Close()
	for range 2 {
		seen := map[string]bool{}
		for {
			names, err := d.Readdirnames(97)
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			for _, name := range names {
				if seen[name] {
					t.Fatalf("%s is listed twice", name)
				}
				seen[name] = true
			}
		}
		if len(seen) != n {
			t.Fatalf("%d names of %d", len(seen), n)
		}
		_, err = d.Seek(0, io.SeekStart)
		must(t, err)
	}
}

// Two clients: what one has closed the other sees when it opens, however long attributes are cached.
func TestCloseToOpen(t *testing.T) {
	s := newServer(t, "tcp", false)
	o := fusedir.Options{AttrTimeout: time.Hour, EntryTimeout: time.Hour}
	a, b := s.mount(t, o), s.mount(t, o)
	for i := range 30 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		want := bytes.Repeat([]byte{byte('a' + i)}, 1+(i*7919)%20000)
		must(t, os.WriteFile(from.path("f"), want, 0o600))
		got, err := os.ReadFile(to.path("f"))
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("round %d: %d bytes of %q, want %d of %q", i, len(got), got[:1], len(want), want[:1])
		}
	}
}

// Renames over one another, from many processes' worth of callers, lose nothing and invent nothing.
func TestConcurrentRenames(t *testing.T) {
	s := newServer(t, "tcp", false)
	c := s.mount(t, fusedir.Options{})
	const workers, files, rounds = 6, 8, 60
	for i := range files {
		must(t, os.WriteFile(c.path(fmt.Sprintf("n%d", i)), []byte(fmt.Sprintf("file %d", i)), 0o600))
	}
	var g errgroup.Group
	for w := range workers {
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for range rounds {
				from, to := fmt.Sprintf("n%d", rng.IntN(files)), fmt.Sprintf("w%d", w)
				// Away to a name of one's own, and back to where nobody else can be: all or nothing each.
				if err := os.Rename(c.path(from), c.path(to)); errors.Is(err, syscall.ENOENT) {
					continue
				} else if err != nil {
					return err
				}
				b, err := os.ReadFile(c.path(to))
				if err != nil {
					return err
				}
				if len(b) != len("file 0") {
					return fmt.Errorf("%s holds %q", to, b)
				}
				if err := os.Rename(c.path(to), c.path(from)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
	got := sums(t, s.dir)
	if len(got) != files+1 { // and the directory
		t.Fatalf("%d names: %v", len(got), got)
	}
	for i := range files {
		if b, err := os.ReadFile(c.path(fmt.Sprintf("n%d", i))); err != nil || string(b) != fmt.Sprintf("file %d", i) {
			t.Errorf("n%d holds %q, %v", i, b, err)
		}
	}
}

// Writers go on over restarts of the server, and all that was synced, and then all, is there.
func TestRestart(t *testing.T) {
	for _, over := range overs {
		t.Run(over, func(t *testing.T) {
			s := newServer(t, over, false)
			c := s.mount(t, fusedir.Options{})
			const writers, blocks, size = 4, 200, 8 << 10
			var g errgroup.Group
			var mu sync.Mutex
			half := make(chan struct{})
			done := 0
			for w := range writers {
				g.Go(func() error {
					f, err := os.Create(c.path(fmt.Sprintf("w%d", w)))
					if err != nil {
						return err
					}
					b := make([]byte, size)
					for i := range blocks {
						for k := range b {
							b[k] = byte(w*31 + i + k>>8)
						}
						if _, err := f.WriteAt(b, int64(i*size)); err != nil {
							return err
						}
						if i%50 == 49 {
							if err := f.Sync(); err != nil {
								return err
							}
						}
						mu.Lock()
						if done++; done == writers*blocks/4 {
							close(half)
						}
						mu.Unlock()
					}
					return f.Close()
				})
			}
			<-half
			for range 3 {
				s.stop(t)
				s.start(t)
			}
			must(t, g.Wait())
			for w := range writers {
				b, err := os.ReadFile(filepath.Join(s.dir, fmt.Sprintf("w%d", w)))
				must(t, err)
				if len(b) != blocks*size {
					t.Fatalf("w%d has %d bytes", w, len(b))
				}
				for i := range b {
					if b[i] != byte(w*31+i/size+i%size>>8) {
						t.Fatalf("w%d differs at %d", w, i)
					}
				}
			}
		})
	}
}
