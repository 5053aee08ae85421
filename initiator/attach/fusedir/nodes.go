package fusedir

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/sluice-storage/sluice/initiator/nfs"
)

// nodes is what the kernel knows of the export: an entry for each file handle that the kernel has been told of and has not
// forgotten.
type nodes struct {
	mu   sync.Mutex
	byID map[uint64]*node
	byFH map[string]*node
	last uint64
}

// node is one file. Its handle does not change.
type node struct {
	id   uint64
	fh   []byte
	refs uint64 // what the kernel will forget; the table's lock
	dir  bool

	mu    sync.Mutex
	opens int           // with those that are being made
	going chan struct{} // while the file is being removed or renamed away; closed when that is over
	gone  bool          // its last name was removed from here
	file  *nfs.File     // while it is open, or has unsynced data
	// cached is the state of the file that the kernel's cached data are of; zero when that is not known.
	cached version
	// hidden is the name that a file got which was removed while it was open, in the directory hiddenIn.
	hidden   string
	hiddenIn []byte
	hiddenBy *nfs.Caller
}

// version tells states of a file's data apart, as well as NFS version 3 can (RFC 1813 section 2.6, wcc_attr).
type version struct {
	mtime, ctime nfs.Time
	size         uint64
	known        bool
}

func versionOf(a *nfs.Attr) version { return version{a.Mtime, a.Ctime, a.Size, true} }

func (t *nodes) init(root []byte, a nfs.Attr) {
	t.byID, t.byFH, t.last = map[uint64]*node{}, map[string]*node{}, fuse.FUSE_ROOT_ID
	n := &node{id: fuse.FUSE_ROOT_ID, fh: root, refs: 1, dir: a.Type == nfs.TypeDir}
	t.byID[n.id], t.byFH[string(root)] = n, n
}

// get finds a node that the kernel names: nil if it names one that it has forgotten.
func (t *nodes) get(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// ref returns the node of an object, counted once more for the kernel.
func (t *nodes) ref(o nfs.Object) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byFH[string(o.FH)]
	if n == nil {
		t.last++
		n = &node{id: t.last, fh: o.FH, dir: o.Attr.Type == nfs.TypeDir}
		t.byID[n.id], t.byFH[string(o.FH)] = n, n
	}
	n.refs++
	return n
}

func (t *nodes) forget(id, refs uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || id == fuse.FUSE_ROOT_ID {
		return
	}
	if n.refs -= min(refs, n.refs); n.refs == 0 {
		delete(t.byID, id)
		delete(t.byFH, string(n.fh))
	}
}

// syncTime bounds what unmounting waits for: files were synced when they were closed, so there is hardly anything.
const syncTime = 30 * time.Second

// sync makes durable what files still have unsynced: those whose last close failed to.
func (t *nodes) sync(ctx context.Context, f *dirFS) error {
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	t.mu.Lock()
	var l []*node
	for _, n := range t.byID {
		l = append(l, n)
	}
	t.mu.Unlock()
	var errs []error
	for _, n := range l {
		n.mu.Lock()
		file := n.file
		n.mu.Unlock()
		if file != nil {
			errs = append(errs, f.self.Sync(ctx, file))
		}
	}
	return errors.Join(errs...)
}

// wrote takes what the server said of a file before and after a change of ours. Cached data stay good if no other client has
// been there in between.
func (n *node) wrote(w nfs.Wcc) {
	n.mu.Lock()
	defer n.mu.Unlock()
	before := version{w.Mtime, w.Ctime, w.Size, true}
	if w.BeforeSet && w.After.Set && n.cached == before {
		n.cached = versionOf(&w.After.Attr)
		return
	}
	n.cached = version{}
}

// handle is one open file or directory.
type handle struct {
	n *node
	c *nfs.Caller // of the process that opened it
	// Of a directory: the part of the listing that was fetched last, and where it goes on.
	mu    sync.Mutex
	list  []nfs.DirEntry
	from  uint64 // the position that list begins at
	page  nfs.DirPage
	begun bool
}

// handles is the table of open files.
type handles struct {
	mu   sync.Mutex
	m    map[uint64]*handle
	last uint64
}

func (t *handles) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[uint64]*handle{}
	}
	t.last++
	t.m[t.last] = h
	return t.last
}

func (t *handles) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.m)
}

func (t *handles) get(id uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.m[id]
}

func (t *handles) drop(id uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.m[id]
	delete(t.m, id)
	return h
}
