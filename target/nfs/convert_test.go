package nfs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
)

// Every error of the file system has a status of RFC 1813 section 2.6: the same number where the RFC has it, and no other that a client does not know.
func TestEveryErrorHasAStatusOfTheVersion(t *testing.T) {
	for e, want := range map[filesystem.Errno]nfs3.Status{
		filesystem.OK: nfs3.OK, filesystem.ErrBadHandle: nfs3.ErrBadhandle, filesystem.ErrChanged: nfs3.ErrNotSync, filesystem.ErrBadCookie: nfs3.ErrBadCookie,
		filesystem.ErrBadType: nfs3.ErrBadtype, filesystem.ErrFault: nfs3.ErrServerfault, filesystem.ErrLater: nfs3.ErrJukebox,
		filesystem.Errno(unix.EPERM): nfs3.ErrPerm, filesystem.Errno(unix.ENOENT): nfs3.ErrNoent, filesystem.Errno(unix.EACCES): nfs3.ErrAcces,
		filesystem.Errno(unix.EXDEV): nfs3.ErrXdev, filesystem.Errno(unix.ENAMETOOLONG): nfs3.ErrNametoolong, filesystem.Errno(unix.ENOTEMPTY): nfs3.ErrNotempty,
		filesystem.Errno(unix.EDQUOT): nfs3.ErrDquot, filesystem.Errno(unix.ESTALE): nfs3.ErrStale, filesystem.Errno(unix.EOPNOTSUPP): nfs3.ErrNotsupp,
		filesystem.Errno(unix.ELOOP): nfs3.ErrInval, filesystem.Errno(unix.ETXTBSY): nfs3.ErrAcces, filesystem.Errno(unix.ENOMEM): nfs3.ErrJukebox,
		filesystem.Errno(unix.EOVERFLOW): nfs3.ErrServerfault, filesystem.Errno(unix.EUCLEAN): nfs3.ErrIO,
	} {
		if st := statusOf(e); st != want {
			t.Errorf("%v is %v, not %v", e, st, want)
		}
	}
	for no := filesystem.Errno(0); no < 200; no++ {
		if st := statusOf(no); statusAt(statusIndex(st)) != st || st.Name()[:3] != "NFS" {
			t.Errorf("%v is %v, which the version does not have", no, st)
		}
	}
}
