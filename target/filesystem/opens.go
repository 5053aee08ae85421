package filesystem

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/defect"
)

// openFile is a file opened with one caller's rights. The mode and owner that were checked are noted: when they change,
// the check is made again.
type openFile struct {
	fd       int
	write    bool
	id       identity
	mode     uint32
	uid, gid uint32
	refs     int
	dead     bool
}

// opened returns a descriptor for reading or writing that id's rights were checked for, if there is one.
func (n *node) opened(id *identity, write bool) *openFile {
	defer defect.Guard()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, o := range n.opens {
		if o.write == write && o.id == *id {
			o.refs++
			return o
		}
	}
	return nil
}

// reopening opens a file by its path descriptor.
type reopening struct{ fd, flags int }

// errMayExec is the answer where a file may not be read and may be executed.
var errMayExec = errors.New("nfs: may be executed")

func (r reopening) open() (int, error) {
	fd, err := unix.Open(procPath(r.fd), r.flags, 0)
	if errors.Is(err, unix.EACCES) && r.flags&unix.O_ACCMODE == unix.O_RDONLY {
		may, aerr := access(r.fd, unix.X_OK)
		switch {
		case aerr != nil:
			err = aerr
		case may:
			err = errMayExec
		}
	}
	return fd, err
}

// open returns a descriptor for reading or writing, opened with id's rights. The owner of a file may read and write it
// whatever its mode says: a client checks when a program opens a file, and the mode may change after that (RFC 1813
// section 4.4). For the same reason a caller that may execute a file may read it.
func (s *FS) open(n *node, id *identity, write bool) (*openFile, error) {
	if o := n.opened(id, write); o != nil {
		return o, nil
	}
	switch n.fmt {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, unix.EISDIR
	default:
		return nil, unix.EINVAL
	}
	var st unix.Stat_t
	if err := unix.Fstat(n.fd, &st); err != nil {
		return nil, err
	}
	flags := unix.O_RDONLY
	if write {
		flags = unix.O_WRONLY
	}
	flags |= unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK
	fd, err := with(s.ids, id, reopening{n.fd, flags}, reopening.open)
	if errors.Is(err, errMayExec) || errors.Is(err, unix.EACCES) && st.Uid == id.uid {
		fd, err = unix.Open(procPath(n.fd), flags, 0)
	}
	if err != nil {
		return nil, err
	}
	o := &openFile{fd: fd, write: write, id: *id, mode: st.Mode, uid: st.Uid, gid: st.Gid, refs: 1}
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.opens) >= maxOpens {
		for i, old := range n.opens {
			if old.refs == 0 {
				n.dropLocked(i)
				break
			}
		}
	}
	n.opens = append(n.opens, o)
	return o, nil
}

func (n *node) dropLocked(i int) {
	o := n.opens[i]
	n.opens = append(n.opens[:i], n.opens[i+1:]...)
	o.dead = true
	if o.refs == 0 {
		_ = unix.Close(o.fd)
	}
}

// retire closes what is open, so that it is opened again: the kernel tells every descriptor of a writeback that failed, those that
// are open once more.
func (n *node) retire() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.opens) > 0 {
		n.dropLocked(0)
	}
}

// still reports whether the rights that o was opened with are what they were, and otherwise makes the next open check.
func (n *node) still(o *openFile, st *unix.Stat_t) bool {
	defer defect.Guard()
	if o.mode == st.Mode && o.uid == st.Uid && o.gid == st.Gid {
		return true
	}
	n.mu.Lock()
	for i, x := range n.opens {
		if x == o {
			n.dropLocked(i)
			break
		}
	}
	n.mu.Unlock()
	return false
}

func (n *node) closeOpen(o *openFile) {
	defer defect.Guard()
	n.mu.Lock()
	o.refs--
	if o.dead && o.refs == 0 {
		_ = unix.Close(o.fd)
	}
	n.mu.Unlock()
}
