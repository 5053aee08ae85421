package ceph

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrNotBuilt is what a binary without the tag ceph says.
var ErrNotBuilt = errors.New("this binary was built without Ceph: use the packages, or build with cgo and a C compiler by make build")

// A LibraryError says that Ceph's libraries are not on this machine, or lack a call.
type LibraryError struct {
	Library string // librados.so.2
	Package string // Debian's
	Reason  string // the dynamic linker's
}

func (e *LibraryError) Error() string {
	return fmt.Sprintf("Ceph's libraries are not installed: apt install librados2 librbd1 (%s: %s)", e.Library, e.Reason)
}

// An Error is a call of the cluster's that failed. It is its Errno for errors.Is.
type Error struct {
	Op     string // "write object", "open image"
	Object string // what it was about; may be empty
	Errno  unix.Errno
	Status string // the monitors' own words; may be empty
}

func (e *Error) Error() string {
	s := "ceph: " + e.Op
	if e.Object != "" {
		s += " " + e.Object
	}
	s += ": " + e.why()
	if e.Status != "" {
		s += " (" + e.Status + ")"
	}
	return s
}

// why has Ceph's own meaning of a number where the system's text would mislead.
func (e *Error) why() string {
	switch e.Errno {
	case unix.ESHUTDOWN: // EBLOCKLISTED
		return "the cluster has blocklisted this client, and takes nothing from it any more; see ceph osd blocklist ls"
	case unix.ETIMEDOUT:
		return "the cluster did not answer in time"
	case unix.ERANGE:
		return "out of range, or the object has changed meanwhile"
	case unix.EPERM, unix.EACCES:
		return e.Errno.Error() + ": the client's keyring or capabilities do not allow it (ceph auth get)"
	}
	return e.Errno.Error()
}

// Unwrap makes errors.Is(err, unix.ENOENT) work.
func (e *Error) Unwrap() error { return e.Errno }
