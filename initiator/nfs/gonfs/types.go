package gonfs

import (
	"errors"
	"io/fs"
	"os"

	client "github.com/vmware/go-nfs-client/nfs"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// The types are those of go-nfs-client themselves, so that what a program does with them stays as it is.
type (
	// Fattr are attributes, an os.FileInfo without a name.
	Fattr = client.Fattr
	// EntryPlus is a name of a directory, an os.FileInfo.
	EntryPlus = client.EntryPlus
	// FSInfo is what the server says of its file system.
	FSInfo = client.FSInfo
	// Error is a refusal of the server that package os has no error for.
	Error = client.Error
	// PostOpAttr are attributes that a server may leave out.
	PostOpAttr = client.PostOpAttr
	// PostOpFH3 is a file handle that a server may leave out.
	PostOpFH3 = client.PostOpFH3
	// NFS3Time is a time.
	NFS3Time = client.NFS3Time
)

// The types of files, Fattr.Type.
const (
	NF3Reg  = client.NF3Reg
	NF3Dir  = client.NF3Dir
	NF3Blk  = client.NF3Blk
	NF3Chr  = client.NF3Chr
	NF3Lnk  = client.NF3Lnk
	NF3Sock = client.NF3Sock
	NF3FIFO = client.NF3FIFO
)

// The statuses, Error.ErrorNum.
const (
	NFS3Ok             = client.NFS3Ok
	NFS3ErrPerm        = client.NFS3ErrPerm
	NFS3ErrNoEnt       = client.NFS3ErrNoEnt
	NFS3ErrIO          = client.NFS3ErrIO
	NFS3ErrNXIO        = client.NFS3ErrNXIO
	NFS3ErrAcces       = client.NFS3ErrAcces
	NFS3ErrExist       = client.NFS3ErrExist
	NFS3ErrXDev        = client.NFS3ErrXDev
	NFS3ErrNoDev       = client.NFS3ErrNoDev
	NFS3ErrNotDir      = client.NFS3ErrNotDir
	NFS3ErrIsDir       = client.NFS3ErrIsDir
	NFS3ErrInval       = client.NFS3ErrInval
	NFS3ErrFBig        = client.NFS3ErrFBig
	NFS3ErrNoSpc       = client.NFS3ErrNoSpc
	NFS3ErrROFS        = client.NFS3ErrROFS
	NFS3ErrMLink       = client.NFS3ErrMLink
	NFS3ErrNameTooLong = client.NFS3ErrNameTooLong
	NFS3ErrNotEmpty    = client.NFS3ErrNotEmpty
	NFS3ErrDQuot       = client.NFS3ErrDQuot
	NFS3ErrStale       = client.NFS3ErrStale
	NFS3ErrRemote      = client.NFS3ErrRemote
	NFS3ErrBadHandle   = client.NFS3ErrBadHandle
	NFS3ErrNotSync     = client.NFS3ErrNotSync
	NFS3ErrBadCookie   = client.NFS3ErrBadCookie
	NFS3ErrNotSupp     = client.NFS3ErrNotSupp
	NFS3ErrTooSmall    = client.NFS3ErrTooSmall
	NFS3ErrServerFault = client.NFS3ErrServerFault
	NFS3ErrBadType     = client.NFS3ErrBadType
)

// NFS3Error is the error of a status: that of package os for NFS3ErrPerm, NFS3ErrNoEnt and NFS3ErrExist, an *Error for the others.
func NFS3Error(status uint32) error { return client.NFS3Error(status) }

// IsNotEmptyError reports NFS3ErrNotEmpty.
func IsNotEmptyError(err error) bool { return client.IsNotEmptyError(err) }

// IsNotDirError reports NFS3ErrNotDir.
func IsNotDirError(err error) bool { return client.IsNotDirError(err) }

// refusal gives an error the form that go-nfs-client has for it: programs compare with == and assert types.
func refusal(err error) error {
	var st nfs.Status
	switch {
	case err == nil:
		return nil
	case errors.As(err, &st):
		if own := client.NFS3Error(uint32(st)); own != os.ErrInvalid { //nolint:errorlint // what it says of a status it does not know
			return own
		}
		return &Error{ErrorNum: uint32(st), ErrorString: st.Name()}
	case errors.Is(err, fs.ErrInvalid):
		return os.ErrInvalid
	}
	return err
}

func timeOf(t nfs.Time) NFS3Time { return NFS3Time{Seconds: t.Sec, Nseconds: t.Nsec} }

func fattr(a nfs.Attr) *Fattr {
	return &Fattr{
		Type: uint32(a.Type), FileMode: a.Mode, Nlink: a.Nlink, UID: a.UID, GID: a.GID, Filesize: a.Size, Used: a.Used,
		SpecData: [2]uint32{a.Major, a.Minor}, FSID: a.FSID, Fileid: a.FileID, Atime: timeOf(a.Atime), Mtime: timeOf(a.Mtime), Ctime: timeOf(a.Ctime),
	}
}

func postOp(a nfs.OptAttr) PostOpAttr {
	if !a.Set {
		return PostOpAttr{}
	}
	return PostOpAttr{IsSet: true, Attr: *fattr(a.Attr)}
}
