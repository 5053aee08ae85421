package filesystem

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

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

// pathTable finds files of fallback handles: by where they were seen last, and else by walks over the export.
type pathTable struct {
	e     *Served
	walks rounds
	// looking has one for each worker that waits for a walk: a client with handles of files that are gone must not have
	// them all.
	looking chan struct{}

	mu    sync.Mutex
	seen  map[uint64]place // by inode number
	want  map[uint64]int   // who looks for an inode number
	found map[uint64]place // what walks have found of those, with the directories above
	gone  map[inode]time.Time
}

type place struct {
	parent uint64
	name   string
}

// step is a directory on the way of a walk.
type step struct {
	ino uint64
	place
}

func newPathTable(e *Served) *pathTable {
	return &pathTable{e: e, looking: make(chan struct{}, maxLooking), seen: make(map[uint64]place), want: make(map[uint64]int),
		found: make(map[uint64]place), gone: make(map[inode]time.Time)}
}

// learn notes that ino has a name in a directory.
func (t *pathTable) learn(parent, ino uint64, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.seen) >= maxSeen {
		clear(t.seen) // the next walk fills it again
	}
	p := place{parent: parent, name: name}
	t.seen[ino] = p
	if _, ok := t.found[ino]; ok {
		t.found[ino] = p
	}
}

// open returns a path descriptor of the file. ESTALE is said of what two walks have not met, each of all of the export: a
// file that is moved during one can be missed, and a client that is told that a file is gone drops what it has not yet
// written. Where that cannot be said yet it is EAGAIN.
func (t *pathTable) open(id inode) (int, error) {
	fd, err := t.try(id)
	if err == nil {
		return fd, nil
	}
	if t.isGone(id) {
		return -1, unix.ESTALE
	}
	select {
	case t.looking <- struct{}{}:
		defer func() { <-t.looking }()
	default:
		return -1, unix.EAGAIN
	}
	t.wanted(id.ino, 1)
	defer t.wanted(id.ino, -1)
	for range 2 {
		err := t.walks.do(func() error { return t.walk(t.e.root, t.e.ino, nil) })
		if fd, terr := t.try(id); terr == nil {
			return fd, nil
		}
		if err != nil {
			return -1, unix.EAGAIN
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.gone) >= maxGone {
		clear(t.gone)
	}
	t.gone[id] = time.Now().Add(goneAge)
	return -1, unix.ESTALE
}

func (t *pathTable) isGone(id inode) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return time.Now().Before(t.gone[id])
}

func (t *pathTable) wanted(ino uint64, more int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.want[ino] += more; t.want[ino] == 0 {
		delete(t.want, ino)
	}
	if len(t.want) == 0 && len(t.found) >= maxFound {
		clear(t.found)
	}
}

// met notes what a walk has met, and keeps the way there if it is looked for.
func (t *pathTable) met(parent, ino uint64, name string, way []step) {
	t.learn(parent, ino, name)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.want[ino] == 0 {
		return
	}
	t.found[ino] = place{parent: parent, name: name}
	for _, s := range way {
		t.found[s.ino] = s.place
	}
}

func (t *pathTable) namesOf(ino uint64) (names []string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ino != t.e.ino {
		p, ok := t.seen[ino]
		if !ok {
			p, ok = t.found[ino]
		}
		if !ok || len(names) == maxDepth {
			return nil, false
		}
		names = append(names, p.name)
		ino = p.parent
	}
	return names, true
}

func (t *pathTable) try(id inode) (int, error) {
	names, ok := t.namesOf(id.ino)
	if !ok {
		return -1, unix.ESTALE
	}
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

// walk learns every name below the directory fd, which stays open; way is how it was reached. An error says that a part
// was left out that may be there at the next try.
func (t *pathTable) walk(fd int, ino uint64, way []step) error {
	if len(way) == maxDepth {
		return nil
	}
	dir, err := unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return unlessNotThere(err)
	}
	defer func() { _ = unix.Close(dir) }()
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(dir, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return unlessNotThere(err)
		}
		for d := (dirents{buf[:n]}); d.next(); {
			name := d.name()
			if string(name) == "." || string(name) == ".." {
				d.skip()
				continue
			}
			child, typ, s := d.ino(), d.typ(), string(name)
			d.skip()
			t.met(ino, child, s, way)
			if typ != unix.DT_DIR && typ != unix.DT_UNKNOWN {
				continue
			}
			sub, err := openBeneath(dir, s)
			if err == nil {
				err = t.walk(sub, child, append(way, step{child, place{ino, s}}))
				_ = unix.Close(sub)
			}
			if err = unlessNotThere(err); err != nil {
				return err
			}
		}
	}
}

// unlessNotThere drops errors that say that a walk has nothing to see there: what has gone meanwhile, a mount, a link, a
// directory that the daemon may not read.
func unlessNotThere(err error) error {
	for _, e := range [...]unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.EACCES, unix.EPERM, unix.ESTALE} {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
