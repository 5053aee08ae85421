package nbd

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/logging"
	"github.com/sluice-storage/sluice/mem"
)

// Limits of one server, with their reasons.
const (
	maxConns   = 16       // Linux opens as many as nbd-client is told; 4 saturate a volume
	slots      = 64       // requests of one connection at a time: qemu and the kernel queue up to 64 and 128
	maxPayload = 32 << 20 // bytes of one request: what the protocol asks servers to take
	maxOption  = 64 << 10 // bytes of one option: names and queries of at most 4096 bytes each
	maxName    = 4096
	maxExtents = 128           // descriptors of one block status reply
	maxExtent  = 1<<32 - 1<<20 // bytes of one of them, which has 32 bits: in whole blocks of any size

	inputBuf      = 64 << 10 // headers and payloads read ahead, in bytes: what 32 reads or 15 writes of 4 KiB send
	longPayload   = 32 << 10 // bytes of a write from which the next one is not read ahead: the copy costs more than a system call
	inlinePayload = 64 << 10 // bytes of answers that the volume's goroutine sends itself: what is less than a switch costs
)

// Volume is what a Server shows: *block.Volume, or another block device with registered memory.
type Volume interface {
	SubmitAll([]*blockdev.Request) // calls After of each, too
	Geometry() blockdev.Geometry
	Memory() *mem.Pool
}

// Options configure a Server.
type Options struct {
	Name     string // of the export; clients that ask for "" get it too
	ReadOnly bool
	Log      *slog.Logger // nil logs nothing
}

// Server serves one volume. Its methods may be called by any goroutine.
type Server struct {
	vol    Volume
	opt    Options
	memory budget
	half   int64 // of the pool: what the budget was at first

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
	wg     sync.WaitGroup
}

// New returns a server for a volume, which must outlive it.
func New(v Volume, o Options) *Server {
	o.Log = logging.OrNone(o.Log)
	s := &Server{vol: v, opt: o, half: v.Memory().Stats().Max / 2, conns: map[net.Conn]struct{}{}}
	s.memory.left.Store(s.half)
	return s
}

// payload is the longest request that is taken, in whole buffers: four connections can have one each.
func (s *Server) payload() int64 { return min(maxPayload, s.half/4) &^ (mem.MaxBuf - 1) }

// quota is what one connection may hold.
func (s *Server) quota() *mem.Quota { return s.vol.Memory().Quota(s.payload() + mem.MaxBuf) }

// Serve answers clients of l until the context ends, closes l, and returns when the last connection has ended.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		_ = l.Close()
		s.mu.Lock()
		s.closed = true
		for c := range s.conns {
			_ = c.Close()
		}
		s.mu.Unlock()
	})
	defer stop()
	defer s.wg.Wait()
	defer func() { _ = l.Close() }()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		s.accept(c, true)
	}
}

// Attach serves one connection that was made elsewhere, past the handshake: the kernel's end of a socket pair. The
// returned channel gives the connection's end.
func (s *Server) Attach(c net.Conn) <-chan error { return s.accept(c, false) }

// Conns is the number of open connections.
func (s *Server) Conns() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Retire lets no client in any more, if none is there; it reports whether it does so.
func (s *Server) Retire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) > 0 {
		return false
	}
	s.closed = true
	return true
}

func (s *Server) accept(c net.Conn, handshake bool) <-chan error {
	done := make(chan error, 1)
	s.mu.Lock()
	if s.closed || len(s.conns) >= maxConns {
		s.mu.Unlock()
		_ = c.Close()
		done <- errors.New("nbd: too many connections")
		return done
	}
	s.conns[c] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		err := s.serve(c, handshake)
		_ = c.Close()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		if err != nil {
			s.opt.Log.Info("nbd connection ended", "error", err)
		}
		done <- err
	}()
	return done
}

// sendBuffer is what a unix socket may hold towards a client, in bytes: the usual 208 KiB is one long read and a half, and
// every further one would cost a pause and two switches of the processor. The kernel takes what net.core.wmem_max allows
// where the process may not ask for more.
const sendBuffer = 4 << 20

// widen makes the socket's buffer larger; one that stays small is slower and nothing else.
func widen(nc net.Conn) {
	u, ok := nc.(*net.UnixConn)
	if !ok {
		return
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
		}
	})
}

func (s *Server) serve(nc net.Conn, handshake bool) error {
	widen(nc)
	c, err := newConn(s, nc)
	if err != nil {
		return err
	}
	if handshake {
		go2, err := c.negotiate()
		if err != nil || !go2 {
			return err
		}
	}
	return c.transmit()
}

// Flags are the transmission flags of the volume, for a kernel that is told them instead of asking.
func (s *Server) Flags() uint16 {
	g := s.vol.Geometry()
	f := uint16(hasFlags | sendFlush | sendFUA | canMultiConn | sendWriteZeroes | sendCache)
	if s.opt.ReadOnly || g.ReadOnly {
		f |= readOnly
	}
	if g.Rotational {
		f |= rotational
	}
	if g.DiscardUnit > 0 {
		f |= sendTrim
	}
	return f
}

// check says what is wrong with a request's range, as the error number of its reply.
func (s *Server) check(off, n uint64, write bool) error {
	g := s.vol.Geometry()
	block := uint64(g.Logical)
	switch {
	case n == 0 || off%block != 0 || n%block != 0:
		return unix.EINVAL
	case off > uint64(g.Size) || n > uint64(g.Size)-off:
		if write {
			return unix.ENOSPC
		}
		return unix.EINVAL
	case write && (s.opt.ReadOnly || g.ReadOnly):
		return unix.EPERM
	}
	return nil
}
