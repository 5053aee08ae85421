package filesystem

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// ACE is an entry of an access control list, in the kernel's numbers (linux/posix_acl.h).
type ACE struct{ Tag, Perm, ID uint32 }

// The extended attributes that hold the lists, and their form (linux/posix_acl_xattr.h): a version, then entries of tag,
// permissions and ID, all little endian.
const (
	xattrAccess   = "system.posix_acl_access"
	xattrDefault  = "system.posix_acl_default"
	xattrVersion  = 2
	xattrHead     = 4
	xattrEntry    = 8
	maxACLEntries = 1024
)

// AccessACL reads a file's list; nil is none.
func (o *Object) AccessACL() ([]ACE, Errno) { return o.acl(xattrAccess) }

// DefaultACL reads the list that a directory's new files get.
func (o *Object) DefaultACL() ([]ACE, Errno) { return o.acl(xattrDefault) }

func (o *Object) acl(name string) ([]ACE, Errno) {
	l, err := readACL(o.n, name)
	return l, errnoOf(err)
}

// SetACLs are the lists that are to change.
type SetACLs struct {
	Access, Default       []ACE // empty ones are removed
	AccessSet, DefaultSet bool
}

// SetACLs changes the lists. The kernel decides whether the caller may, and whether a list makes sense.
func (o *Object) SetACLs(a *SetACLs) Errno {
	switch {
	case o.n.fmt == unix.S_IFLNK:
		return Errno(unix.EOPNOTSUPP)
	case o.n.fmt != unix.S_IFDIR && len(a.Default) > 0:
		return Errno(unix.EINVAL)
	}
	var w Change
	var st unix.Stat_t
	err := o.s.changing(o.n, &w, &st, func() error {
		return o.s.ids.as(&o.id, func() (err error) {
			if a.AccessSet {
				err = writeACL(o.n, xattrAccess, a.Access)
			}
			if err == nil && a.DefaultSet && o.n.fmt == unix.S_IFDIR {
				err = writeACL(o.n, xattrDefault, a.Default)
			}
			return err
		})
	})
	if err == nil {
		err = o.s.durable(o.n)
	}
	return errnoOf(err)
}

// readACL reads a list; nil is none. A symbolic link has none, and asking by its path would ask what it points to.
func readACL(n *node, name string) ([]ACE, error) {
	if n.fmt == unix.S_IFLNK {
		return nil, nil
	}
	b := make([]byte, xattrHead+maxACLEntries*xattrEntry)
	k, err := unix.Getxattr(procPath(n.fd), name, b)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.EOPNOTSUPP):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if b = b[:k]; k < xattrHead || (k-xattrHead)%xattrEntry != 0 || binary.LittleEndian.Uint32(b) != xattrVersion {
		return nil, unix.EIO
	}
	var l []ACE
	for b = b[xattrHead:]; len(b) > 0; b = b[xattrEntry:] {
		l = append(l, ACE{Tag: uint32(binary.LittleEndian.Uint16(b)), Perm: uint32(binary.LittleEndian.Uint16(b[2:])), ID: binary.LittleEndian.Uint32(b[4:])})
	}
	return l, nil
}

func hasDefaultACL(dir int) (bool, error) {
	n, err := unix.Getxattr(procPath(dir), xattrDefault, nil)
	if errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	return n > xattrHead, err
}

func writeACL(n *node, name string, l []ACE) error {
	if len(l) == 0 {
		err := unix.Removexattr(procPath(n.fd), name)
		if errors.Is(err, unix.ENODATA) {
			return nil
		}
		return err
	}
	b := binary.LittleEndian.AppendUint32(nil, xattrVersion)
	for _, e := range l {
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Tag))
		b = binary.LittleEndian.AppendUint16(b, uint16(e.Perm))
		b = binary.LittleEndian.AppendUint32(b, e.ID)
	}
	return unix.Setxattr(procPath(n.fd), name, b, 0)
}
