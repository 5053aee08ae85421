package filesystem

import (
	"strings"

	"golang.org/x/sys/unix"
)

// contains reports whether what is behind a descriptor lies below the export's root, by the name that the kernel knows.
func (e *Served) contains(fd int) bool {
	var buf [unix.PathMax]byte
	k, err := unix.Readlink(procPath(e.root), buf[:])
	if err != nil {
		return false
	}
	root := string(buf[:k])
	if k, err = unix.Readlink(procPath(fd), buf[:]); err != nil {
		return false
	}
	name := string(buf[:k])
	return name == root || root == "/" && strings.HasPrefix(name, "/") || strings.HasPrefix(name, root+"/")
}

// connect gives a file that was opened by its handle a name, for contains. The kernel that has forgotten a directory's
// entries, after a restart or for want of memory, opens a directory by its handle with all above it, and a file without:
// then the file is looked for where it was seen last, and else all over the export. It takes fd over.
func (e *Served) connect(fd int) (int, error) {
	if e.contains(fd) || named(fd) {
		return fd, nil
	}
	id, err := inodeID(fd)
	_ = unix.Close(fd)
	if err != nil {
		return -1, err
	}
	return e.table.open(id)
}

// named reports whether the name that the kernel knows leads to what is behind fd.
func named(fd int) bool {
	var buf [unix.PathMax]byte
	k, err := unix.Readlink(procPath(fd), buf[:])
	if err != nil {
		return false
	}
	var there, here unix.Stat_t
	return unix.Lstat(string(buf[:k]), &there) == nil && unix.Fstat(fd, &here) == nil && there.Dev == here.Dev && there.Ino == here.Ino
}
