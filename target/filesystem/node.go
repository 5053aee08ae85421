package filesystem

import (
	"hash/maphash"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/defect"
)

// node is a file whose handle was verified, with the descriptors that stand for it. Its handle maps to it in one of the
// shards of nodeCache; each user holds a reference.
type node struct {
	e    *Served
	key  string // the handle
	fd   int    // O_PATH
	ino  uint64
	fmt  uint32 // S_IFMT
	refs int    // guarded by the shard's lock
	used int64  // unix seconds, guarded by the shard's lock
	gone bool   // out of the cache; the last reference closes it
	file *file

	mu    sync.Mutex
	opens []*openFile
}

type nodeShard struct {
	sync.Mutex
	m map[string]*node
}

type nodeCache struct {
	s      *FS
	seed   maphash.Seed
	shards [nodeShards]nodeShard
}

func (c *nodeCache) init(s *FS) {
	c.s, c.seed = s, maphash.MakeSeed()
	for i := range c.shards {
		c.shards[i].m = make(map[string]*node)
	}
}

func (c *nodeCache) shard(h []byte) *nodeShard {
	return &c.shards[maphash.Bytes(c.seed, h)%nodeShards]
}

// cached returns the node of a handle that is in the cache, with a reference, or nil.
func (c *nodeCache) cached(h []byte) *node {
	defer defect.Guard()
	s := c.shard(h)
	s.Lock()
	n := s.m[string(h)]
	if n != nil {
		n.refs++
	}
	s.Unlock()
	return n
}

// get returns the node of any handle, with a reference.
func (c *nodeCache) get(h []byte) (*node, error) {
	if n := c.cached(h); n != nil {
		return n, nil
	}
	e, body, err := c.s.checkHandle(h)
	for err == nil && !e.hold() {
		e, body, err = c.s.checkHandle(h) // the exports were replaced just now
	}
	if err != nil {
		return nil, err
	}
	defer e.close()
	fd, err := c.s.openHandle(e, h, body)
	if err == nil && e.SubtreeCheck {
		fd, err = e.connect(fd)
	}
	if err != nil {
		return nil, err
	}
	return c.add(e, string(h), fd)
}

// add makes the node of a verified handle whose path descriptor is fd, with a reference. It takes fd over; the caller
// holds the export.
func (c *nodeCache) add(e *Served, key string, fd int) (*node, error) {
	defer defect.Guard()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	if st.Nlink == 0 {
		_ = unix.Close(fd)
		return nil, unix.ESTALE
	}
	n := &node{e: e, key: key, fd: fd, ino: st.Ino, fmt: st.Mode & unix.S_IFMT, refs: 1, file: c.s.files.get(fileID{st.Dev, st.Ino})}
	e.hold()
	s := c.shard([]byte(key))
	s.Lock()
	if old := s.m[key]; old != nil {
		old.refs++
		s.Unlock()
		c.free(n)
		return old, nil
	}
	var victim *node
	if len(s.m) >= maxNodes/nodeShards {
		victim = s.oldestLocked(e.medium)
	}
	s.m[key] = n
	s.Unlock()
	switch {
	case victim == nil:
	case victim.e.medium == e.medium:
		c.shut(victim) // the call is in that medium, and may wait for it
	default:
		c.putAside(victim)
	}
	return n, nil
}

// oldestLocked takes an unused node out of the cache for a call in a medium; among a handful that the map yields, the oldest.
// One of another medium that does not get its files closed stays.
func (s *nodeShard) oldestLocked(m *medium) *node {
	var best *node
	k := 0
	for _, n := range s.m {
		if n.refs == 0 && (best == nil || n.used < best.used) && (n.e.medium == m || n.e.medium.waiting.Load() < maxAside) {
			best = n
		}
		if k++; k == 8 && best != nil {
			break
		}
	}
	if best != nil {
		delete(s.m, best.key)
		best.gone = true
	}
	return best
}

// put gives a reference back, in a call that may wait for the node's medium.
func (c *nodeCache) put(n *node) {
	defer defect.Guard()
	if c.unref(n) {
		c.shut(n)
	}
}

// leave gives a reference back and waits for nothing.
func (c *nodeCache) leave(n *node) {
	defer defect.Guard()
	if c.unref(n) {
		c.putAside(n)
	}
}

// unref reports that the node is out of the cache and this was the last reference.
func (c *nodeCache) unref(n *node) bool {
	s := c.shardOf(n.key)
	s.Lock()
	defer s.Unlock()
	n.refs--
	n.used = time.Now().Unix()
	return n.gone && n.refs == 0
}

func (c *nodeCache) shardOf(key string) *nodeShard {
	return &c.shards[maphash.String(c.seed, key)%nodeShards]
}

// forget takes a node that no longer exists out of the cache. The caller holds a reference.
func (c *nodeCache) forget(n *node) {
	defer defect.Guard()
	s := c.shardOf(n.key)
	s.Lock()
	if !n.gone {
		delete(s.m, n.key)
		n.gone = true
	}
	s.Unlock()
}

// shut closes a node that is out of the cache and unused. What was written unstably is flushed first: a failure has to
// change the verifier, and after the last descriptor is gone the kernel tells of none. Until then another node of the
// handle shares this one's file, and a COMMIT there waits.
func (c *nodeCache) shut(n *node) {
	if n.file.dirty() {
		_ = c.s.flush(n) // a failure is in the log, and in the verifier
	}
	c.free(n)
}

func (c *nodeCache) free(n *node) {
	for _, o := range n.opens {
		_ = unix.Close(o.fd)
	}
	n.opens = nil
	_ = unix.Close(n.fd)
	c.s.files.put(n.file)
	n.e.close()
}
