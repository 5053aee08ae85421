package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// tree is a set of files by their path, without a leading slash. Directories come by themselves.
type tree map[string]file

type file struct {
	mode fs.FileMode
	data []byte
}

func (t tree) add(name string, mode fs.FileMode, b []byte) { t[path.Clean(name)] = file{mode, b} }

// link adds a symbolic link.
func (t tree) link(name, target string) {
	t[path.Clean(name)] = file{fs.ModeSymlink | 0o777, []byte(target)}
}

// addGz adds the file compressed, as Debian wants manual pages and long texts: best compression, no time inside.
func (t tree) addGz(name string, b []byte) error {
	z, err := compress(b)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t.add(name+".gz", 0o644, z)
	return nil
}

func compress(b []byte) ([]byte, error) {
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(b); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func (t tree) names() []string { return slices.Sorted(maps.Keys(t)) }

// dirs are the directories above the files, parents first.
func (t tree) dirs() []string {
	seen := map[string]bool{}
	for name := range t {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			seen[d] = true
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// write puts the tree below dir, every file with the one time.
func (t tree) write(dir string, mtime time.Time) error {
	for _, name := range t.names() {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		f := t[name]
		if f.mode&fs.ModeSymlink != 0 {
			if err := symlink(string(f.data), p, mtime); err != nil {
				return err
			}
			continue
		}
		if err := os.WriteFile(p, f.data, f.mode); err != nil {
			return err
		}
		if err := os.Chmod(p, f.mode); err != nil { // the umask is the builder's
			return err
		}
		if err := os.Chtimes(p, mtime, mtime); err != nil {
			return err
		}
	}
	for _, name := range append(t.dirs(), ".") { // after all files, which change their directory's time
		p := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.Chmod(p, 0o755); err != nil { //nolint:gosec // directories of a package
			return err
		}
		if err := os.Chtimes(p, mtime, mtime); err != nil {
			return err
		}
	}
	return nil
}

// symlink makes a link whose own time is mtime: dpkg-deb stores it.
func symlink(target, name string, mtime time.Time) error {
	if err := os.Symlink(target, name); err != nil {
		return err
	}
	ts := unix.NsecToTimespec(mtime.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("time of %s: %w", name, err)
	}
	return nil
}

// archive is the tree as root's files of one time, sorted.
func archive(t tree, mtime time.Time) ([]byte, error) {
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	head := tar.Header{Format: tar.FormatUSTAR, Uname: "root", Gname: "root", ModTime: mtime}
	for _, d := range t.dirs() {
		h := head
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, d+"/", 0o755
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	for _, name := range t.names() {
		f, h := t[name], head
		h.Typeflag, h.Name, h.Mode, h.Size = tar.TypeReg, name, int64(f.mode), int64(len(f.data))
		if f.mode&fs.ModeSymlink != 0 {
			h.Typeflag, h.Mode, h.Linkname, h.Size = tar.TypeSymlink, 0o777, string(f.data), 0
			f.data = nil
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return raw.Bytes(), nil
}
