// Package wholefile makes files that are there whole or not at all: the data go to a file beside, which takes the name
// when the copy has ended well. A copy that is interrupted leaves what was there before.
package wholefile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// File is a file that is being made. Commit gives it its name; Close without Commit removes it.
type File struct {
	*os.File
	dir  *os.Root
	own  bool // dir is closed with the file
	temp string
	name string
}

// Temp is the name that a file has until it is whole: hidden, and different each time.
func Temp(name string) string {
	if len(name) > 200 {
		name = name[:200] // with what is put around it, it stays below the 255 bytes of a name
	}
	return "." + name + ".sluice-" + strings.ToLower(rand.Text()[:12])
}

// Replaces says whether a file that is made under a name keeps permissions and owner of what has the name: of a regular file. old and
// err are what a look at it without following links gave. A directory is not replaced.
func Replaces(name string, old fs.FileInfo, err error) (keeps bool, _ error) {
	switch {
	case err == nil && old.IsDir():
		return false, &fs.PathError{Op: "create", Path: name, Err: syscall.EISDIR}
	case err == nil:
		return old.Mode().IsRegular(), nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}

// Create begins a file at a path. Links are followed: it is what they lead to that is replaced. A file that is there keeps its
// permissions and its owner.
func Create(path string, perm fs.FileMode) (*File, error) {
	to, err := resolve(path)
	if err != nil {
		return nil, err
	}
	dir, err := os.OpenRoot(filepath.Dir(to))
	if err != nil {
		return nil, err
	}
	f, err := CreateIn(dir, filepath.Base(to), perm)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	f.own = true
	return f, nil
}

// CreateIn begins a file below a directory and never leads out of it.
func CreateIn(dir *os.Root, name string, perm fs.FileMode) (*File, error) {
	old, err := dir.Lstat(name)
	keeps, err := Replaces(name, old, err)
	if err != nil {
		return nil, err
	}
	if keeps {
		perm = old.Mode().Perm()
	}
	temp := filepath.Join(filepath.Dir(name), Temp(filepath.Base(name)))
	f, err := dir.OpenFile(temp, os.O_CREATE|os.O_EXCL|os.O_RDWR, perm)
	if err != nil {
		return nil, fmt.Errorf("%s is made beside its place and moved there when it is whole: %w", name, err)
	}
	w := &File{File: f, dir: dir, temp: temp, name: name}
	if keeps {
		if err := keep(f, old); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

// keep gives f the permissions of the file that it replaces, and its owner where that can be given.
func keep(f *os.File, old fs.FileInfo) error {
	if st, ok := old.Sys().(*syscall.Stat_t); ok {
		if err := f.Chown(int(st.Uid), int(st.Gid)); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return f.Chmod(old.Mode().Perm()) // after the owner: a change of that clears bits
}

// resolve follows links, also one that leads to nothing yet.
func resolve(path string) (string, error) {
	for range 40 {
		fi, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Mode()&fs.ModeSymlink == 0 {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(path) + "/" + to // not Join: ".." after a link is not the directory before it
		}
		path = to
	}
	return "", &fs.PathError{Op: "create", Path: path, Err: syscall.ELOOP}
}

// Commit makes the content durable and gives the file its name, in place of what has it.
func (f *File) Commit() error {
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.dir.Rename(f.temp, f.name); err != nil {
		return err
	}
	f.temp = ""
	d, err := f.dir.Open(filepath.Dir(f.name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close ends the file; one that is not committed goes.
func (f *File) Close() error {
	err := f.File.Close()
	if f.temp != "" {
		err = errors.Join(err, f.dir.Remove(f.temp))
	}
	if f.own {
		err = errors.Join(err, f.dir.Close())
	}
	return err
}
