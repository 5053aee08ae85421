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

// gate bounds the calls of one file system that are being executed, by whatever exports: those of a medium that hangs must not take all workers, nor
// all that a client may have in flight on a connection, which it shares between exports. Who finds no room waits for
// gateTime; once that was in vain, calls are asked for later at once until one has ended.
type gate struct {
	in      atomic.Int32
	waiting atomic.Int32
	stuck   atomic.Bool
	sweeps  atomic.Int32                  // of the file system's nodes, under way
	left    atomic.Pointer[chan struct{}] // told of each that leaves while some wait
}

// enter reports whether the call may be executed; then leave has to follow.
func (g *gate) enter() bool {
	if g.try() {
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
	for !g.try() {
		select {
		case <-*left:
		case <-t.C:
			g.stuck.Store(true)
			return false
		}
	}
	return true
}

func (g *gate) try() bool {
	if g.in.Add(1) <= maxInExport {
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

// gateOf is the gate of the file system of the export that a handle names, true or forged; nil where there is none.
func (s *Server) gateOf(fh []byte) *gate {
	if len(fh) < handleHead {
		return nil
	}
	e := s.table.Load().byID[binary.BigEndian.Uint32(fh[2:])]
	if e == nil {
		return nil
	}
	return e.gate
}

// admit takes a call whose first argument is a handle through the gate of its file system. The gate is nil where nothing bounds
// the call; ok is false where it is to be answered NFS3ERR_JUKEBOX.
func (s *Server) admit(c *served.Call) (g *gate, ok bool) {
	args := c.Args
	if g = s.gateOf(args.Opaque(nfs3.MaxFH)); g == nil || g.enter() {
		return g, true
	}
	return nil, false
}

// later answers NFS3ERR_JUKEBOX; words of the result are the flags of attributes that are not there.
func later(c *served.Call, words int) served.Verdict {
	c.Out = binary.BigEndian.AppendUint32(c.Out[:rpc.ReplyLen], uint32(nfs3.ErrJukebox))
	c.Out = append(c.Out, make([]byte, 4*words)...)
	return served.Done
}

// mayHang reports a file system whose every call may wait for another machine or process: nothing of it is tried by the
// goroutine that reads a connection.
func mayHang(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return true
	}
	switch uint32(st.Type) {
	case unix.FUSE_SUPER_MAGIC, unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC,
		unix.V9FS_MAGIC, unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.CODA_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC:
		return true
	}
	return false
}
