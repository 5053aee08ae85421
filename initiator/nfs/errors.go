package nfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
)

// Status is a server's refusal of a call (nfsstat3, RFC 1813 section 2.6). errors.Is finds it in what the methods of this
// package return: by its own value, and where one of io/fs means the same, by fs.ErrNotExist, fs.ErrExist, fs.ErrPermission
// and fs.ErrInvalid.
type Status uint32

// The refusals. Those behind fs.ErrNotExist are ErrNoEntry and ErrStale, behind fs.ErrExist ErrExists and ErrNotEmpty, behind
// fs.ErrPermission ErrNotOwner, ErrAccess and ErrReadOnly, behind fs.ErrInvalid ErrInvalid.
const (
	ErrNotOwner     Status = 1     // NFS3ERR_PERM: only the owner, or root, may do this
	ErrNoEntry      Status = 2     // NFS3ERR_NOENT: there is no such file or directory
	ErrIO           Status = 5     // NFS3ERR_IO: the server's medium failed
	ErrNoAddress    Status = 6     // NFS3ERR_NXIO: there is no such device
	ErrAccess       Status = 13    // NFS3ERR_ACCES: permission denied
	ErrExists       Status = 17    // NFS3ERR_EXIST: the name is taken
	ErrCrossDevice  Status = 18    // NFS3ERR_XDEV: not within one file system
	ErrNoSuchDevice Status = 19    // NFS3ERR_NODEV: there is no such device
	ErrNotDir       Status = 20    // NFS3ERR_NOTDIR: not a directory
	ErrIsDir        Status = 21    // NFS3ERR_ISDIR: a directory
	ErrInvalid      Status = 22    // NFS3ERR_INVAL: an argument is invalid
	ErrTooBig       Status = 27    // NFS3ERR_FBIG: the file would be too large
	ErrNoSpace      Status = 28    // NFS3ERR_NOSPC: the server's disk is full
	ErrReadOnly     Status = 30    // NFS3ERR_ROFS: exported read-only
	ErrManyLinks    Status = 31    // NFS3ERR_MLINK: the file has as many names as it can have
	ErrNameTooLong  Status = 63    // NFS3ERR_NAMETOOLONG
	ErrNotEmpty     Status = 66    // NFS3ERR_NOTEMPTY: a directory that is not empty
	ErrQuota        Status = 69    // NFS3ERR_DQUOT: the user's quota is used up
	ErrStale        Status = 70    // NFS3ERR_STALE: the file that was opened is gone
	ErrRemote       Status = 71    // NFS3ERR_REMOTE: too many levels of remote
	ErrBadHandle    Status = 10001 // NFS3ERR_BADHANDLE: the server does not know this file handle
	ErrNotSync      Status = 10002 // NFS3ERR_NOT_SYNC: the file changed meanwhile
	ErrBadCookie    Status = 10003 // NFS3ERR_BAD_COOKIE: a listing cannot go on
	ErrNotSupported Status = 10004 // NFS3ERR_NOTSUPP
	ErrTooSmall     Status = 10005 // NFS3ERR_TOOSMALL: a buffer is too small
	ErrServerFault  Status = 10006 // NFS3ERR_SERVERFAULT: the server failed
	ErrBadType      Status = 10007 // NFS3ERR_BADTYPE: this type of file cannot be made there
	ErrJukebox      Status = 10008 // NFS3ERR_JUKEBOX: the server asked to try later until the context ended
)

func (s Status) Error() string { return nfs3.Status(s).Error() }

// Name is the status in the RFC's words: "NFS3ERR_NOENT".
func (s Status) Name() string { return nfs3.Status(s).Name() }

// Is makes errors.Is(err, fs.ErrNotExist) and the like work.
func (s Status) Is(target error) bool { return nfs3.Status(s).Is(target) }

// status is nil for NFS3_OK: a Status in an error would not be.
func status(s nfs3.Status) error {
	if s != nfs3.OK {
		return Status(s)
	}
	return nil
}

// Unwrap is the status as it was decoded.
func (s Status) Unwrap() error { return nfs3.Status(s) }

// Error is an operation on a path that the server refused; errors.As finds it. An *fs.PathError is around it, whose text names
// operation and path.
type Error struct {
	Op     string // "open", "rename"
	Path   string
	Status Status
	err    error // what Status was found in
}

func (e *Error) Error() string { return e.Unwrap().Error() }

// Unwrap leads to the Status.
func (e *Error) Unwrap() error {
	if e.err == nil {
		return e.Status
	}
	return e.err
}

// pathError names what failed. It is nil for nil.
func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	var st Status
	if errors.As(err, &st) {
		err = &Error{Op: op, Path: name, Status: st, err: err}
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// MountError is the refusal of a server to mount a directory. errors.Is knows fs.ErrNotExist where the server exports no such
// directory and fs.ErrPermission where this client may not mount it. Status has the meanings and numbers of mountstat3
// (RFC 1813 section 5.1.5), which are a part of those of NFS.
type MountError struct {
	Path   string
	Status Status
}

func (e *MountError) Error() string { return e.Path + ": " + mount3.Status(e.Status).Error() }

// Is matches the sentinels of io/fs.
func (e *MountError) Is(target error) bool { return mount3.Status(e.Status).Is(target) }

func mountError(name string, err error) error {
	var st mount3.Status
	if errors.As(err, &st) {
		return &MountError{Path: name, Status: Status(st)}
	}
	return fmt.Errorf("%s: %w", name, err)
}

// RPCError is a call that the server did not execute: it has no such program or procedure, or refuses the credential
// (errors.Is with ErrCredential).
type RPCError = rpcclient.ReplyError

// ErrCredential says that the server refused who we say we are, before it looked at the call.
var ErrCredential = rpcclient.ErrCredential

// NameError is a name that a server lists and that no file can have. It is refused: joined to a path it would lead elsewhere.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("nfs: the server lists a file called %q, which is no name", e.Name)
}

// checkName refuses what cannot be one element of a path; "." and ".." are the server's to list.
func checkName(s string) error {
	if s == "" || strings.ContainsAny(s, "/\x00") {
		return &NameError{s}
	}
	return nil
}

var (
	// ErrClosed ends the calls of an FS that was closed; it is fs.ErrClosed too.
	ErrClosed = rpcclient.ErrClosed
	// errNoProgress is a listing that is not at its end and does not get on: names may be missing in it.
	errNoProgress = errors.New("nfs: the server lists a directory without an end: it goes back to where it was before")
	// ErrLoop says that a path leads through more symbolic links than are followed.
	ErrLoop = errors.New("nfs: too many symbolic links")
	// ErrNoDevice says that an RDMA URL needs a fabric.
	ErrNoDevice = errors.New("nfs: the URL asks for RDMA, and no RDMA device is given")
	// ErrExposure says that a URL asks for an exposure that the one device there is was not opened with, for all that is known.
	ErrExposure = errors.New("nfs: the URL asks for an exposure, and there is only the device that the program has opened: leave exposure out, or give a Provider")
	// ErrNotDirectory says that a URL to be opened as a file system names a file.
	ErrNotDirectory = errors.New("nfs: the URL names a file and not a directory; open the directory, and the file in it")
)
