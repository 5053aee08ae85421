package filesystem

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// medium is a file system that exports are of.
type medium struct {
	gate gate
	closer
}

// gate bounds calls that are being executed. Who finds no room waits for gateTime; once that was in vain, calls are asked for
// later at once until one has ended.
type gate struct {
	in      atomic.Int32
	waiting atomic.Int32 // of queue, so that leaving takes no lock where none waits
	stuck   atomic.Bool
	mu      sync.Mutex
	queue   []*entrant
}

// entrant waits at a gate. Not all have the same bound, so a place may be of no use to the one that waits longest.
type entrant struct {
	most int32
	in   chan struct{} // closed when it is in
}

// enter reports whether the call may be executed, beside fewer than most; then leave has to follow.
func (g *gate) enter(most int32) bool {
	if g.try(most) {
		return true
	}
	if g.stuck.Load() {
		return false
	}
	e := &entrant{most, make(chan struct{})}
	g.mu.Lock()
	g.queue = append(g.queue, e)
	g.waiting.Store(int32(len(g.queue)))
	g.admitLocked() // one may have left before it could be seen that this one waits
	g.mu.Unlock()
	t := time.NewTimer(gateTime)
	defer t.Stop()
	select {
	case <-e.in:
		return true
	case <-t.C:
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.Index(g.queue, e)
	if i < 0 {
		return true // it was let in at the same time
	}
	g.queue = slices.Delete(g.queue, i, i+1)
	g.waiting.Store(int32(len(g.queue)))
	g.stuck.Store(true)
	return false
}

func (g *gate) try(most int32) bool {
	for {
		n := g.in.Load()
		if n >= most {
			return false
		}
		if g.in.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (g *gate) leave() {
	g.in.Add(-1)
	if g.stuck.Load() {
		g.stuck.Store(false)
	}
	if g.waiting.Load() > 0 {
		g.mu.Lock()
		g.admitLocked()
		g.mu.Unlock()
	}
}

// admitLocked lets in who may, those that have waited longest first.
func (g *gate) admitLocked() {
	g.queue = slices.DeleteFunc(g.queue, func(e *entrant) bool {
		in := g.try(e.most)
		if in {
			close(e.in)
		}
		return in
	})
	g.waiting.Store(int32(len(g.queue)))
}

// caller is what is kept of a connection, in its Peer's Memo, and of a host, in its Peers' HostMemo.
type caller struct {
	decided atomic.Pointer[memo]
	seats   atomic.Pointer[[]*seat]
}

// seat bounds the calls of one connection, or of one host, in one medium.
type seat struct {
	m *medium
	gate
}

func callerOf(p Peer) *caller { return callerIn(p.Memo()) }

func callerIn(memo *atomic.Pointer[any]) *caller {
	for {
		old := memo.Load()
		if old != nil {
			if c, is := (*old).(*caller); is {
				return c
			}
		}
		var fresh any = &caller{}
		memo.CompareAndSwap(old, &fresh)
	}
}

// at returns the seat of a medium, and how many calls are under way in others.
func (c *caller) at(m *medium) (mine *seat, others int32) {
	for {
		l := c.seats.Load()
		var was []*seat
		if l != nil {
			was = *l
		}
		for _, p := range was {
			if p.m == m {
				mine = p
			} else {
				others += p.in.Load()
			}
		}
		if mine != nil {
			return mine, others
		}
		next := []*seat{{m: m}}
		for _, p := range was {
			if len(was) < maxSeats || p.in.Load() > 0 { // exports come and go
				next = append(next, p)
			}
		}
		c.seats.CompareAndSwap(l, &next)
		others = 0
	}
}

// Pass is the leave to execute a call in a medium.
type Pass struct {
	m          *medium
	conn, host *seat
}

// Leave gives the place back.
func (p Pass) Leave() {
	if p.m != nil {
		p.m.gate.leave()
	}
	for _, s := range [...]*seat{p.host, p.conn} {
		if s != nil {
			s.leave()
		}
	}
}

// sit takes a seat in a medium, of most calls in all media: a quarter of what the other media leave of them stays free. It returns nil
// where there is none.
func (c *caller) sit(m *medium, most int32) *seat {
	mine, others := c.at(m)
	if !mine.enter(max(1, threeQuarters(most-others))) {
		return nil
	}
	return mine
}

// sitOfHost is sit for a host, in the media of which a few calls have places beside maxOfHost: the others of a host may be other machines
// behind its address, whose media are well.
func (c *caller) sitOfHost(m *medium) *seat {
	mine, others := c.at(m)
	if !mine.enter(max(1, threeQuarters(maxOfHost-others), min(fewOfHost, (mostOfHost-others)/4))) {
		return nil
	}
	return mine
}

func threeQuarters(n int32) int32 { return n - max(1, n/4) }

// enter takes a call into a medium. Those of media that hang must not take all workers, nor all that a client may have in flight on a
// connection, which it shares between exports, nor the memory that all connections of its host share for their requests. ok is
// false where the call is to be asked for later.
func (m *medium) enter(peer Peer) (p Pass, ok bool) {
	if slots := int32(peer.Slots()); slots > 0 {
		p.conn = callerOf(peer).sit(m, slots)
		ok = p.conn != nil
		if memo := peer.HostMemo(); ok && memo != nil {
			p.host = callerIn(memo).sitOfHost(m)
			ok = p.host != nil
		}
		if !ok {
			p.Leave()
			return Pass{}, false
		}
	}
	if !m.gate.enter(maxInExport) {
		p.Leave()
		return Pass{}, false
	}
	p.m = m
	return p, true
}

// Enter takes a call about a handle into its medium, if there is one; e is the handle's export. With OK the pass has to be left.
func (e *Served) Enter(peer Peer) (p Pass, ok bool) {
	if e != nil && e.medium != nil {
		return e.medium.enter(peer)
	}
	return Pass{}, true
}

// File systems of clusters whose numbers linux/magic.h does not have.
const (
	lustreMagic = 0x0bd00bd0
	gfs2Magic   = 0x01161970
	beegfsMagic = 0x19830326
	gpfsMagic   = 0x47504653
)

// mayHang reports a file system whose every call may wait for another machine or process: nothing of it is tried by the
// goroutine that reads a connection.
func mayHang(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return true
	}
	switch uint32(st.Type) {
	case unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC,
		unix.AUTOFS_SUPER_MAGIC, lustreMagic, gfs2Magic, beegfsMagic, gpfsMagic:
		return true
	}
	return false
}

// inMemory reports a file system that keeps its files in memory alone: at worst a page has been swapped out.
func inMemory(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && (uint32(st.Type) == unix.TMPFS_MAGIC || uint32(st.Type) == unix.RAMFS_MAGIC)
}
