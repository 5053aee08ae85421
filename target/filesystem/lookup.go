package filesystem

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Lookup finds a name in a directory: its handle and, as far as they can be had, its attributes.
func (o *Object) Lookup(name []byte, a *Attr) (handle []byte, e Errno) {
	child, err := o.s.child(o, name)
	if err != nil {
		return nil, errnoOf(err)
	}
	defer o.s.nodes.put(child)
	o.s.after(child, a)
	return []byte(child.key), OK
}

// child finds a name in a directory with the caller's rights. The node comes with a reference.
func (s *FS) child(q *Object, name []byte) (*node, error) {
	if e := checkName(name); e != OK && e != errDots {
		return nil, e
	}
	var st unix.Stat_t
	if err := s.stat(q.n, &st); err != nil {
		return nil, err
	}
	at := entry{q.n, string(name)}
	fd, err := with(s.ids, &q.id, at, entry.open)
	if err == nil && string(name) == ".." {
		if err = q.n.e.below(fd); err != nil {
			_ = unix.Close(fd)
		}
	}
	if errors.Is(err, unix.EXDEV) {
		err = unix.EACCES // a mount point: what is behind it may be another export
	}
	if err != nil {
		return nil, err
	}
	return s.nodeOf(q.n, at.name, fd)
}

// entry is a name in a directory.
type entry struct {
	dir  *node
	name string
}

// open opens what has the name, as a path.
func (e entry) open() (int, error) {
	switch e.name {
	case "..":
		up := ".."
		if e.dir.ino == e.dir.e.ino {
			up = "." // nothing is above the root of an export
		}
		return unix.Openat(e.dir.fd, up, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return openBeneath(e.dir.fd, e.name)
}

// nodeOf makes the node of a path descriptor just opened below dir, and takes it over.
func (s *FS) nodeOf(dir *node, name string, fd int) (*node, error) {
	h, err := s.makeHandle(dir.e, fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	n, err := s.nodes.add(dir.e, string(h), fd)
	if err == nil && dir.e.table != nil && name != "." && name != ".." {
		dir.e.table.learn(dir.ino, n.ino, name)
	}
	return n, err
}

// below is nil where the directory behind fd lies in the export, and ESTALE where it does not. A directory may have been moved out of
// the export while a client held its handle, and must not lead further up. Any other error says that the place is not known.
func (e *Served) below(fd int) error {
	cur := fd
	for depth := 0; depth < maxDepth; depth++ {
		var st unix.Stat_t
		err := unix.Fstat(cur, &st)
		up := -1
		if err == nil && (st.Dev != e.dev || st.Ino != e.ino) {
			up, err = unix.Openat(cur, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		if cur != fd {
			_ = unix.Close(cur)
		}
		if err != nil || up < 0 {
			return err
		}
		cur = up
	}
	if cur != fd {
		_ = unix.Close(cur)
	}
	return unix.ESTALE
}

func checkName(name []byte) Errno {
	switch {
	case len(name) == 0:
		return Errno(unix.EINVAL)
	case len(name) > MaxName:
		return Errno(unix.ENAMETOOLONG)
	case string(name) == ".", string(name) == "..":
		return errDots
	}
	for _, b := range name {
		if b == 0 || b == '/' {
			return Errno(unix.EINVAL)
		}
	}
	return OK
}

// Readlink reads where a symbolic link points to.
func (o *Object) Readlink(b []byte) (n int, e Errno) {
	n, err := unix.Readlinkat(o.n.fd, "", b)
	return n, errnoOf(err)
}

// May is what a caller may do with a file.
type May struct{ Read, Write, Execute bool }

// Access says what the caller may do. A medium that does not tell is no refusal: clients remember those.
func (o *Object) Access() (m May, e Errno) {
	may, err := with(o.s.ids, &o.id, asked{o.n.fd, !o.rights.ReadOnly}, asked.may)
	if errors.Is(err, unix.EACCES) {
		return m, OK // an identity that cannot be taken may nothing
	}
	if err != nil {
		return m, errnoOf(err)
	}
	return May{may[0], may[1], may[2]}, OK
}

// asked is what Access asks the kernel.
type asked struct {
	fd    int
	write bool
}

// may says whether reading, writing and executing are allowed.
func (a asked) may() (is [3]bool, err error) {
	for i, mode := range [...]uint32{unix.R_OK, unix.W_OK, unix.X_OK} {
		if mode == unix.W_OK && !a.write {
			continue
		}
		if is[i], err = access(a.fd, mode); err != nil {
			return is, err
		}
	}
	return is, nil
}
