package nfs

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
)

// inode is what a fallback handle holds. The birth time tells a new file from an old one of the same number.
type inode struct {
	ino  uint64
	sec  int64
	nsec uint32
}

func (i inode) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, i.ino)
	b = binary.BigEndian.AppendUint64(b, uint64(i.sec))
	return binary.BigEndian.AppendUint32(b, i.nsec)
}

func (i *inode) parse(b []byte) bool {
	if len(b) != 20 {
		return false
	}
	i.ino, i.sec, i.nsec = binary.BigEndian.Uint64(b), int64(binary.BigEndian.Uint64(b[8:])), binary.BigEndian.Uint32(b[16:])
	return true
}

func inodeID(fd int) (inode, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return inode{}, err
	}
	id := inode{ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		id.sec, id.nsec = st.Btime.Sec, st.Btime.Nsec
	}
	return id, nil
}

// pathTable finds files of fallback handles: by where they were seen last, and else by one walk over the export.
type pathTable struct {
	e    *export
	mu   sync.Mutex
	seen map[uint64]place // by inode number
	// walks counts walks, so that those who wait for one do not start another.
	walkMu sync.Mutex
	walks  uint64
}

type place struct {
	parent uint64
	name   string
}

func newPathTable(e *export) *pathTable {
	return &pathTable{e: e, seen: make(map[uint64]place)}
}

// learn notes that ino has a name in a directory.
func (t *pathTable) learn(parent, ino uint64, name string) {
	t.mu.Lock()
	if len(t.seen) >= maxWalk {
		clear(t.seen) // the next walk fills it again
	}
	t.seen[ino] = place{parent: parent, name: name}
	t.mu.Unlock()
}

// open returns a path descriptor of the file, or ESTALE.
func (t *pathTable) open(id inode) (int, error) {
	t.walkMu.Lock()
	walks := t.walks
	t.walkMu.Unlock()
	fd, err := t.try(id)
	if err == nil {
		return fd, nil
	}
	t.walkMu.Lock()
	if t.walks == walks {
		left := maxWalk
		t.walk(t.e.root, t.e.ino, &left, 0)
		t.walks++
	}
	t.walkMu.Unlock()
	return t.try(id)
}

func (t *pathTable) try(id inode) (int, error) {
	var names []string
	t.mu.Lock()
	for ino := id.ino; ino != t.e.ino; {
		p, ok := t.seen[ino]
		if !ok || len(names) == maxDepth {
			t.mu.Unlock()
			return -1, unix.ESTALE
		}
		names = append(names, p.name)
		ino = p.parent
	}
	t.mu.Unlock()
	fd, err := unix.Openat(t.e.root, ".", unix.O_PATH|unix.O_CLOEXEC|unix.O_DIRECTORY, 0)
	for i := len(names) - 1; i >= 0 && err == nil; i-- {
		var next int
		next, err = openBeneath(fd, names[i])
		_ = unix.Close(fd)
		fd = next
	}
	if err != nil {
		return -1, unix.ESTALE
	}
	if got, err := inodeID(fd); err != nil || got != id {
		_ = unix.Close(fd)
		return -1, unix.ESTALE
	}
	return fd, nil
}

// walk learns every name below the directory fd, which stays open.
func (t *pathTable) walk(fd int, ino uint64, left *int, depth int) {
	if depth == maxDepth {
		return
	}
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(dir) }()
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if n <= 0 || err != nil {
			return
		}
		for d := (dirents{buf[:n]}); d.next(); {
			name := d.name()
			if string(name) == "." || string(name) == ".." {
				d.skip()
				continue
			}
			if *left--; *left <= 0 {
				return
			}
			child, typ, s := d.ino(), d.typ(), string(name)
			d.skip()
			t.learn(ino, child, s)
			if typ == unix.DT_DIR || typ == unix.DT_UNKNOWN {
				if sub, err := openBeneath(dir, s); err == nil {
					t.walk(sub, child, left, depth+1)
					_ = unix.Close(sub)
				}
			}
		}
	}
}
