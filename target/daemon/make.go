package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/target/admin"
)

// makeVolume makes the file of a volume that has none, with a new identity beside it. It takes over nothing of an earlier volume of
// that name or path. What is kept of the earlier volume is forgotten later, by replaced, when the new volume is sure to stay.
func (d *Daemon) makeVolume(v VolumeConfig, fill func(*os.File) error) (*madeFile, error) {
	if err := vacant(v.Path); err != nil {
		return nil, err
	}
	was, err := readIdentity(beside(v.Path))
	if err != nil {
		return nil, &admin.Error{Kind: admin.Conflict, Msg: beside(v.Path) + " is there and is not the identity of a volume; move it: the new volume's will lie there"}
	}
	ends := ending{volume: v.Name, record: d.recordPath(v.Name), beside: beside(v.Path), was: was}
	if ends.known, err = readJSON(ends.record, &ends.rec); err != nil {
		d.log.Warn("what is known of an earlier volume cannot be read", zap.String("volume", v.Name), zap.Error(err))
		ends.known = false
	}
	m, err := makeFile(v.Path, func(f *os.File) error {
		// The identity comes last: the file that was there may only be away, and filling can take long. A kill leaves it what it was.
		if err := fill(f); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return writeJSON(beside(v.Path), newIdentity())
	})
	if err != nil {
		return nil, errors.Join(err, ends.takeBack())
	}
	m.ends = ends
	return m, nil
}

// ending is what is known of an earlier volume whose place a new file takes.
type ending struct {
	volume         string
	record, beside string
	known          bool           // there is a record
	rec            identityRecord // of the state directory
	was            *identity      // beside the file's place
}

// takeBack restores what was known of the earlier volume.
func (e *ending) takeBack() error {
	put := func(path string, was any, there bool) error {
		if there {
			return writeJSON(path, was)
		}
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	return errors.Join(put(e.beside, e.was, e.was != nil), put(e.record, e.rec, e.known))
}

// replaced forgets the earlier volume, after a change that serves the new one. A volume whose identity lay at the place has lost its
// identity. Any other volume may be away with its file system: it is the same disk again when that is mounted.
func (d *Daemon) replaced(e ending) {
	if !e.known {
		return
	}
	away := e.was == nil || e.was.Key != e.rec.Key
	var now identityRecord
	if there, err := readJSON(e.record, &now); there && err == nil && now.Key == e.rec.Key {
		d.forgetIdentity(e.volume, away) // the new one could not be written down there
		return
	}
	d.forgetState(e.volume, e.rec, away)
}

// makeDefault makes the embedded default's volume.
func (d *Daemon) makeDefault() error {
	for _, v := range d.cfg.Volumes {
		if v.Name != "default" || d.cfg.managedVolume(v.Name) {
			continue
		}
		m, err := d.makeVolume(v, fillEmpty(int64(v.Size), v.Thick))
		if err == nil {
			d.replaced(m.ends)
		}
		if e := (*admin.Error)(nil); err != nil && !errors.As(err, &e) { // one that is there is served
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

// madeFile is a volume's file that this daemon has just made.
type madeFile struct {
	path string
	info os.FileInfo
	ends ending // with its identity; none where a file is made without
}

// makeFile makes a file that was not there, filled and on the disk before it has its name: it is never seen in part, and
// nothing that has the name already is touched.
func makeFile(path string, fill func(*os.File) error) (*madeFile, error) {
	if err := vacant(path); err != nil {
		return nil, err
	}
	m, err := makeUnnamed(path, fill)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR): // open(2), O_TMPFILE: what file systems and kernels say that have none
		m, err = makeNamed(path, fill)
	}
	if errors.Is(err, fs.ErrExist) {
		return nil, &admin.Error{Kind: admin.Conflict, Msg: path + " has come to be there meanwhile; nothing was made"}
	}
	return m, err
}

// vacant fails where a file cannot be made, because something has its place.
func vacant(path string) error {
	switch _, err := os.Lstat(path); {
	case err == nil:
		return &admin.Error{Kind: admin.Conflict, Msg: path + " is there already, and a new volume takes no file over; move it, or name another with --path"}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if _, err := os.Lstat(path + ".redo"); err == nil {
		return &admin.Error{Kind: admin.Conflict, Msg: path + ".redo is there, the log of an earlier volume, which would be written to the new one; remove it first"}
	}
	if strings.HasPrefix(path, "/dev/") {
		return &admin.Error{Kind: admin.Conflict, Msg: path + " is where devices appear; no file is made there"}
	}
	return nil
}

func makeUnnamed(path string, fill func(*os.File) error) (*madeFile, error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close() // written and synced
	return finishFile(f, path, fill, func() error {
		return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	})
}

func makeNamed(path string, fill func(*os.File) error) (*madeFile, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".new-*")
	if err != nil {
		return nil, err
	}
	defer f.Close() // written and synced
	m, err := finishFile(f, path, fill, func() error {
		return unix.Renameat2(unix.AT_FDCWD, f.Name(), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	})
	if err != nil {
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return m, nil
}

func finishFile(f *os.File, path string, fill func(*os.File) error, name func() error) (*madeFile, error) {
	if err := fill(f); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if err := name(); err != nil {
		return nil, &os.LinkError{Op: "name", Old: f.Name(), New: path, Err: err}
	}
	m := &madeFile{path: path, info: fi}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return nil, errors.Join(err, m.remove())
	}
	return m, nil
}

// remove takes the file away again, unless another has its name by now.
func (m *madeFile) remove() error {
	fi, err := os.Lstat(m.path)
	if err != nil || !os.SameFile(fi, m.info) {
		return nil // it is not there any more
	}
	err = os.Remove(m.path)
	if m.ends.volume != "" {
		err = errors.Join(err, m.ends.takeBack())
	}
	return err
}

// fillEmpty makes a file of size bytes, with all of its room where it is to be thick.
func fillEmpty(size int64, thick bool) func(*os.File) error {
	return func(f *os.File) error {
		if thick {
			if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
				return &os.PathError{Op: "take room for", Path: f.Name(), Err: err}
			}
		}
		return f.Truncate(size)
	}
}
