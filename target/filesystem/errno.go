package filesystem

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Errno says why an operation was not done: one of the kernel's numbers, such as Errno(unix.ENOENT), or one of those below.
type Errno uint16

// OK says that it was done.
const OK Errno = 0

// What the kernel has no number for.
const (
	// ErrBadHandle is a handle that this server did not make.
	ErrBadHandle Errno = 0x4000 + iota
	// ErrChanged says that the file is not what the caller's condition asks for.
	ErrChanged
	// ErrBadCookie is a place in a directory that there is not.
	ErrBadCookie
	// ErrBadType is a type of file that cannot be made.
	ErrBadType
	// ErrFault is a fault of this server.
	ErrFault
	// ErrLater says that it cannot be done now: the client asks again.
	ErrLater
	// ErrWait says that the operation would have to wait, and the caller must not.
	ErrWait
	// ErrNoMemory says that there is no memory for the result now.
	ErrNoMemory
	// ErrSuperseded says that the caller has given the operation up meanwhile, and must not be answered.
	ErrSuperseded

	errDots // checkName's word for "." and "..", which some operations take and others refuse
)

var errnoNames = map[Errno]string{
	ErrBadHandle: "a file handle that this server did not make", ErrChanged: "the file has changed", ErrBadCookie: "no such place in the directory",
	ErrBadType: "this type cannot be made", ErrFault: "the server failed", ErrLater: "cannot be done now", ErrWait: "would have to wait",
	ErrNoMemory: "no memory for the result", ErrSuperseded: "the client has repeated this call", errDots: "a name of dots",
}

func (e Errno) Error() string {
	if e < ErrBadHandle {
		return unix.Errno(e).Error()
	}
	if n, ok := errnoNames[e]; ok {
		return "nfs: " + n
	}
	return fmt.Sprintf("nfs: error %d", uint16(e))
}

// transient reports an error that says to ask once more.
func (e Errno) transient() bool {
	switch unix.Errno(e) {
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EAGAIN, unix.EBUSY:
		return true
	}
	return e == ErrLater
}

// errnoOf is the number that stands for an error of the file system.
func errnoOf(err error) Errno {
	if err == nil {
		return OK
	}
	var made *madeError
	if errors.As(err, &made) {
		if e := errnoOf(made.err); !e.transient() {
			return e
		}
		return ErrFault
	}
	var own Errno
	if errors.As(err, &own) {
		return own
	}
	var e unix.Errno
	if !errors.As(err, &e) {
		return ErrFault
	}
	if Errno(e).transient() {
		return ErrLater
	}
	return Errno(e)
}
