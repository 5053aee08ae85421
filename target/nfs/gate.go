package nfs

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/rpc"
	served "github.com/sluice-storage/sluice/target/rpc"
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
	waiting atomic.Int32
	stuck   atomic.Bool
	left    atomic.Pointer[chan struct{}] // told of each that leaves while some wait
}

// enter reports whether the call may be executed, beside fewer than most; then leave has to follow.
func (g *gate) enter(most int32) bool {
	if g.try(most) {
		return true
	}
	if g.stuck.Load() {
		return false
	}
	left := g.left.Load()
	if left == nil {
		c := make(chan struct{}, maxInExport)
		g.left.CompareAndSwap(nil, &c)
		left = g.left.Load()
	}
	g.waiting.Add(1)
	defer g.waiting.Add(-1)
	t := time.NewTimer(gateTime)
	defer t.Stop()
	for !g.try(most) {
		select {
		case <-*left:
		case <-t.C:
			g.stuck.Store(true)
			return false
		}
	}
	return true
}

func (g *gate) try(most int32) bool {
	if g.in.Add(1) <= most {
		return true
	}
	g.in.Add(-1)
	return false
}

func (g *gate) leave() {
	g.in.Add(-1)
	if g.stuck.Load() {
		g.stuck.Store(false)
	}
	if g.waiting.Load() > 0 {
		select {
		case *g.left.Load() <- struct{}{}:
		default:
		}
	}
}

// caller is what is kept of a connection, in its Peer's Memo.
type caller struct {
	decided atomic.Pointer[memo]
	seats   atomic.Pointer[[]*seat]
}

// seat bounds the calls of one connection in one medium.
type seat struct {
	m *medium
	gate
}

func callerOf(p *served.Peer) *caller {
	for {
		old := p.Memo.Load()
		if old != nil {
			if c, is := (*old).(*caller); is {
				return c
			}
		}
		var fresh any = &caller{}
		p.Memo.CompareAndSwap(old, &fresh)
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

// pass is the leave to execute a call in a medium.
type pass struct {
	m *medium
	p *seat
}

func (p pass) leave() {
	if p.m != nil {
		p.m.gate.leave()
	}
	if p.p != nil {
		p.p.leave()
	}
}

// enter takes a call into a medium. Those of one that hangs must not take all workers, nor all that a client may have in
// flight on a connection, which it shares between exports: a quarter of what the other media leave of that stays free. ok is
// false where the call is to be answered NFS3ERR_JUKEBOX.
func (m *medium) enter(peer *served.Peer) (p pass, ok bool) {
	var mine *seat
	if slots := int32(peer.Slots()); slots > 0 {
		var others int32
		mine, others = callerOf(peer).at(m)
		free := slots - others
		if !mine.enter(max(1, free-max(1, free/4))) {
			return pass{}, false
		}
	}
	if !m.gate.enter(maxInExport) {
		if mine != nil {
			mine.leave()
		}
		return pass{}, false
	}
	return pass{m, mine}, true
}

// mediumOf is the medium of the export that a handle names, true or forged; nil where there is none.
func (s *Server) mediumOf(fh []byte) *medium {
	if len(fh) < handleHead {
		return nil
	}
	e := s.table.Load().byID[binary.BigEndian.Uint32(fh[2:])]
	if e == nil {
		return nil
	}
	return e.medium
}

// enter takes a call about a handle into its medium, if there is one.
func (s *Server) enter(peer *served.Peer, fh []byte) (p pass, ok bool) {
	if m := s.mediumOf(fh); m != nil {
		return m.enter(peer)
	}
	return pass{}, true
}

// admit is enter for a call whose first argument is a handle.
func (s *Server) admit(c *served.Call) (p pass, ok bool) {
	args := c.Args
	return s.enter(c.Peer, args.Opaque(nfs3.MaxFH))
}

// later answers NFS3ERR_JUKEBOX; words of the result are the flags of attributes that are not there.
func later(c *served.Call, words int) served.Verdict {
	c.Out = binary.BigEndian.AppendUint32(c.Out[:rpc.ReplyLen], uint32(nfs3.ErrJukebox))
	c.Out = append(c.Out, make([]byte, 4*words)...)
	return served.Done
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
