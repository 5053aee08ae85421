package gonfs_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"

	client "github.com/vmware/go-nfs-client/nfs"

	"github.com/sluice-storage/sluice/initiator/nfs/gonfs"
)

// target and file are go-nfs-client's methods, as a program of that package calls them.
type target[F file] interface {
	FSInfo() (*client.FSInfo, error)
	Lookup(path string) (os.FileInfo, []byte, error)
	ReadDirPlus(dir string) ([]*client.EntryPlus, error)
	Mkdir(path string, perm os.FileMode) ([]byte, error)
	Create(path string, perm os.FileMode) ([]byte, error)
	Remove(path string) error
	RmDir(path string) error
	RemoveAll(path string) error
	Open(path string) (F, error)
	OpenFile(path string, perm os.FileMode) (F, error)
	SetTimeout(d time.Duration)
	Close() error
}

type file interface {
	io.ReadWriteSeeker
	io.Closer
	Readlink() (string, error)
}

// One program is both clients'.
var (
	_ = program[*client.File](new(client.Target))
	_ = program[*gonfs.File](new(gonfs.Target))
)

// program gives a program of go-nfs-client's vocabulary one of the clients. It makes directories and files under dir, checks what it
// wrote by reading it, tries what must fail, and removes it all.
func program[F file](v target[F]) func(dir string) error {
	return func(dir string) error {
		before, err := names(v, ".")
		if err != nil {
			return err
		}
		for _, d := range []string{dir, dir + "/in", dir + "/in/deep"} {
			if _, err := v.Mkdir(d, 0o775); err != nil {
				return fmt.Errorf("mkdir %s: %w", d, err)
			}
		}
		if _, err := v.Mkdir(dir, 0o775); !os.IsExist(err) {
			return fmt.Errorf("mkdir of what is there: %v", err)
		}
		now, err := names(v, ".")
		if err != nil || len(now) != len(before)+1 {
			return fmt.Errorf("%d names after one was made, of %d: %v", len(now), len(before), err)
		}
		for name, size := range map[string]int64{"large": 10 << 20, "few": 7} {
			if err := roundTrip(v, name, size); err != nil {
				return err
			}
		}
		var e *client.Error
		if err := v.RemoveAll("few"); !asError(err, &e) || e.ErrorNum != client.NFS3ErrNotDir {
			return fmt.Errorf("a file removed as a tree: %v", err)
		}
		for _, name := range []string{"few", "large"} {
			if err := v.Remove(name); err != nil {
				return fmt.Errorf("remove %s: %w", name, err)
			}
		}
		if _, _, err := v.Lookup(dir); err != nil {
			return err
		}
		if err := v.RmDir(dir); !client.IsNotEmptyError(err) {
			return fmt.Errorf("a directory with something in it was removed: %v", err)
		}
		for _, name := range []string{"/a", "/in/a", "/in/deep/a", "/in/deep/b"} {
			if err := roundTrip(v, dir+name, 10); err != nil {
				return err
			}
		}
		if err := v.RemoveAll(dir); err != nil {
			return err
		}
		if now, err = names(v, "."); err != nil || len(now) != len(before) {
			return fmt.Errorf("%v are left of %v: %v", now, before, err)
		}
		return nil
	}
}

// asError is the type assertion that go-nfs-client's programs make.
func asError(err error, e **client.Error) (ok bool) {
	*e, ok = err.(*client.Error)
	return ok
}

func names[F file](v target[F], dir string) ([]string, error) {
	l, err := v.ReadDirPlus(dir)
	var out []string
	for _, e := range l {
		if e.FileName != "." && e.FileName != ".." {
			out = append(out, e.FileName)
		}
	}
	return out, err
}

// roundTrip writes a file of random bytes and compares what comes back.
func roundTrip[F file](v target[F], name string, size int64) error {
	w, err := v.OpenFile(name, 0o777)
	if err != nil {
		return fmt.Errorf("open %s to write: %w", name, err)
	}
	sent := sha256.New()
	if _, err := io.CopyN(w, io.TeeReader(bytes.NewReader(random(size)), sent), size); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := w.Close(); err != nil {
		return err
	}
	r, err := v.Open(name)
	if err != nil {
		return fmt.Errorf("open %s to read: %w", name, err)
	}
	came := sha256.New()
	if n, err := io.Copy(came, struct{ io.Reader }{r}); err != nil || n != size {
		return fmt.Errorf("%d bytes of %d came back from %s: %w", n, size, name, err)
	}
	if !bytes.Equal(sent.Sum(nil), came.Sum(nil)) {
		return fmt.Errorf("%s has other bytes", name)
	}
	return nil
}
