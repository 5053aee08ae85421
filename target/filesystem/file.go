package filesystem

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// file is what all nodes of one file share, by whatever handles and exports they came.
type file struct {
	id   fileID
	born uint64 // each has another: of two, the older one's change is locked first
	refs int    // nodes; guarded by fileTable

	// change serialises what is bracketed by weak cache consistency data: attributes before and after an operation mean
	// something only if no other operation of ours came between (RFC 1813 section 2.6).
	change  sync.Mutex
	flushes rounds

	mu sync.Mutex
	// keeper is open from before the first UNSTABLE WRITE until a flush has covered the last. The kernel tells a
	// descriptor of the writebacks that failed since it was opened, each once; this one only flushes ask. -1: the file
	// has nothing unflushed.
	keeper  int
	begun   uint64 // UNSTABLE WRITEs
	writing int    // of them, not ended
	asked   bool   // a flush uses keeper
	gone    bool   // the file has no name any more
}

type fileID struct{ dev, ino uint64 }

type fileTable struct {
	mu   sync.Mutex
	m    map[fileID]*file
	born uint64
}

func (t *fileTable) get(id fileID) *file {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.m[id]
	if f == nil || f.removed() { // the number is another file's now
		t.born++
		f = &file{id: id, born: t.born, keeper: -1}
		t.m[id] = f
	}
	f.refs++
	return f
}

func (t *fileTable) put(f *file) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.refs--; f.refs > 0 {
		return
	}
	if t.m[f.id] == f {
		delete(t.m, f.id)
	}
	if f.keeper >= 0 {
		_ = unix.Close(f.keeper)
	}
}

// begin is called before an UNSTABLE WRITE by the descriptor o of the node n, and end after it.
func (f *file) begin(n *node, o *openFile) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.keeper < 0 {
		const flags = unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK
		fd, err := unix.Open(procPath(n.fd), unix.O_WRONLY|flags, 0)
		if err != nil {
			fd, err = unix.Open(procPath(n.fd), unix.O_RDONLY|flags, 0)
		}
		if err != nil {
			fd, err = unix.FcntlInt(uintptr(o.fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		if err != nil {
			return err
		}
		f.keeper = fd
	}
	f.begun++
	f.writing++
	return nil
}

func (f *file) end() {
	f.mu.Lock()
	f.writing--
	f.mu.Unlock()
}

func (f *file) removed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

func (f *file) dirty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keeper >= 0
}

// ask returns the keeper for a flush, or -1, and what settle needs to know.
func (f *file) ask() (keeper int, mark uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = true
	// A WRITE that has begun and not ended may put its data into the cache behind the flush.
	if mark = f.begun; f.writing > 0 {
		mark--
	}
	return f.keeper, mark
}

// settle ends what ask began. A flush that failed covers the file too: the verifier has changed, so clients send again
// what was written before.
func (f *file) settle(mark uint64, covered bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = false
	if f.keeper >= 0 && (covered && f.begun == mark || f.gone) {
		_ = unix.Close(f.keeper)
		f.keeper = -1
	}
}

// forget is called when the last name is gone: what was written can be read by no client, and needs no flush.
func (f *file) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gone = true
	if f.keeper >= 0 && !f.asked {
		_ = unix.Close(f.keeper)
		f.keeper = -1
	}
}

// flush makes all of the file durable, data and attributes, and changes the verifier before it answers that it could
// not. Calls at one time share flushes.
func (s *FS) flush(n *node) error {
	return n.file.flushes.do(func() error {
		keeper, mark := n.file.ask()
		ended := false // a flush that panics covers nothing
		defer func() { n.file.settle(mark, ended) }()
		err := s.sync(n, keeper)
		ended = true
		if err != nil {
			s.writebackFailed(n, err)
			n.retire()
		}
		return err
	})
}

// sync makes a file durable by the descriptor fd, or if that is -1 by one of its own; or the whole file system where the
// file cannot be opened (a link, a special file, one that the daemon's own user may not read), and where it knows no
// fsync for it.
func (s *FS) sync(n *node, fd int) error {
	if fd < 0 {
		if n.fmt != unix.S_IFDIR && n.fmt != unix.S_IFREG {
			return s.syncAll(n)
		}
		var err error
		if fd, err = unix.Open(procPath(n.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0); err != nil {
			return s.syncAll(n)
		}
		defer func() { _ = unix.Close(fd) }()
	}
	err := s.storage.Sync(fd)
	if errors.Is(err, unix.EINTR) {
		// It may be what the kernel says of a writeback, once: the next answer knows nothing of it.
		s.writebackFailed(n, err)
		err = s.storage.Sync(fd)
	}
	if errors.Is(err, unix.EINVAL) {
		return s.syncAll(n)
	}
	return err
}

// syncAll makes the whole file system durable. Its descriptor is shared by all that ask, and so is what it answers.
func (s *FS) syncAll(n *node) error {
	return n.e.flushes.do(func() error {
		err := unix.Syncfs(n.e.root)
		if err != nil {
			s.writebackFailed(n, err)
		}
		return err
	})
}

// durable makes a change of names or attributes durable before it is answered, unless the export says otherwise (RFC
// 1813 section 4.8). What cannot be made durable was done all the same, and is answered as failed: no client is to build
// on it. It is called without the lock of the change, so that others change meanwhile and share the next flush.
func (s *FS) durable(n *node) error {
	if n.e.Async {
		return nil
	}
	return afterwards(s.flush(n))
}

// madeError is of a step that comes after a change was made. A client that is told to ask once more (JUKEBOX) would meet
// its own change, and take it for another's.
type madeError struct{ err error }

func (e *madeError) Error() string { return e.err.Error() }
func (e *madeError) Unwrap() error { return e.err }

func afterwards(err error) error {
	if err == nil {
		return nil
	}
	return &madeError{err}
}
