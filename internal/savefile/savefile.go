// Package savefile writes files that a loss of power at any point leaves whole, with the old content or the new, under
// their names. What it answers is so: where it fails the old content has its name again.
package savefile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Replace gives the file at path the content b. When it returns nil the content and the name are on the disk.
func Replace(path string, b []byte) error {
	r, err := Prepare(path, b)
	if err != nil {
		return err
	}
	defer r.Drop()
	return r.Put()
}

// Create makes the file at path, and is fs.ErrExist where there is one. Of several that try at one time one succeeds, and
// the file is never seen without its content.
func Create(path string, b []byte) error {
	r, err := Prepare(path, b)
	if err != nil {
		return err
	}
	defer r.Drop()
	if err = os.Link(r.temp, path); err == nil {
		if err = syncDir(filepath.Dir(path)); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}
	if err != nil {
		err = fmt.Errorf("save %s: %w", path, err)
	}
	return err
}

// Ready is a file's new content, on the disk beside it: what is left to do needs no room.
type Ready struct {
	path, temp string
}

// Prepare writes the content aside and reads it again. Drop is due in the end, whatever becomes of it.
func Prepare(path string, b []byte) (*Ready, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", path, err)
	}
	r := &Ready{path, f.Name()}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		var is []byte
		if is, err = os.ReadFile(r.temp); err == nil && !bytes.Equal(is, b) {
			err = errors.New("other bytes are read than were written")
		}
	}
	if err != nil {
		r.Drop()
		return nil, fmt.Errorf("save %s: %w", path, err)
	}
	return r, nil
}

// Put makes the content the file's; the name is on the disk before it returns nil. Where that cannot be had the old content gets
// its name back: a change that is refused is not found made at the next start.
func (r *Ready) Put() error {
	swapped, err := true, unix.Renameat2(unix.AT_FDCWD, r.temp, unix.AT_FDCWD, r.path, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT): // there is no old one
		swapped, err = false, unix.Renameat2(unix.AT_FDCWD, r.temp, unix.AT_FDCWD, r.path, unix.RENAME_NOREPLACE)
	case err == nil && isDir(r.temp):
		return r.failed(errors.Join(unix.EISDIR, unix.Renameat2(unix.AT_FDCWD, r.temp, unix.AT_FDCWD, r.path, unix.RENAME_EXCHANGE)))
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // a file system that cannot exchange, as NFS
		if err = os.Rename(r.temp, r.path); err == nil {
			err = syncDir(filepath.Dir(r.path))
		}
		return r.failed(err)
	}
	if err != nil {
		return r.failed(err)
	}
	if err = syncDir(filepath.Dir(r.path)); err != nil {
		if swapped {
			err = errors.Join(err, unix.Renameat2(unix.AT_FDCWD, r.temp, unix.AT_FDCWD, r.path, unix.RENAME_EXCHANGE))
		} else {
			err = errors.Join(err, os.Remove(r.path))
		}
	}
	return r.failed(err)
}

func (r *Ready) failed(err error) error {
	if err != nil {
		return fmt.Errorf("save %s: %w", r.path, err)
	}
	return nil
}

// Drop removes what lies beside the file: the old content where the new one was put, else the new one. It fails no save: a
// file that is left over there means nothing.
func (r *Ready) Drop() { _ = os.Remove(r.temp) }

func isDir(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && fi.IsDir()
}

// MkdirAll makes a directory for such files, with those above it. Its own name is on the disk when it returns nil, and so
// is that of the one above.
func MkdirAll(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for range 2 {
		dir = filepath.Dir(dir)
		// A directory that may be passed and not read belongs to another user, who made it long ago.
		if err := syncDir(dir); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
