// Package savefile writes files that a loss of power at any point leaves whole, with the old content or the new, under
// their names.
package savefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace gives the file at path the content b. When it returns nil the content and the name are on the disk.
func Replace(path string, b []byte) error { return save(path, b, os.Rename) }

// Create makes the file at path, and is fs.ErrExist where there is one. Of several that try at one time one succeeds, and
// the file is never seen without its content.
func Create(path string, b []byte) error { return save(path, b, os.Link) }

// save writes the content aside, has it on the disk, and puts it in place.
func save(path string, b []byte, place func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = place(f.Name(), path)
	}
	if rm := os.Remove(f.Name()); err == nil && !errors.Is(rm, fs.ErrNotExist) {
		err = rm
	}
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
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
