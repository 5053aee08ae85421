package rpcserver

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// A loan is a result that is not read into memory. The program puts pages of its file into a pipe (splice(2)), so it
// knows how many bytes there are before the reply's header is made; the stream moves the pages on to the socket.
// A later write to the file may show in what the client gets, as with any server that sends from the page
// cache. The number of bytes does not change any more.

// pipe carries one loan at a time.
type pipe struct {
	r, w int
	left int // bytes in it that are to be sent, less than 0 where that is not known
	next *pipe
}

var (
	pageSize  = os.Getpagesize()
	loanPages = MaxPayload / pageSize // what a pipe takes: each slot holds one page, or a part of one
)

// pipes are those of one stream. Pipes that are known to be empty are used again.
type pipes struct {
	s     *Server
	mu    sync.Mutex
	idle  *pipe
	ended bool
	off   atomic.Bool // the kernel refuses to splice into this socket
}

// newPipe makes a pipe for a whole payload, or returns nil where the kernel does not let us.
func newPipe() *pipe {
	var fd [2]int
	if unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK) != nil {
		return nil
	}
	p := &pipe{r: fd[0], w: fd[1], left: -1}
	// Up to this size (pipe-max-size) every user may; one who has many pipes gets no more (pipe(7)).
	if size, err := unix.FcntlInt(uintptr(p.w), unix.F_SETPIPE_SZ, MaxPayload); err != nil || size < MaxPayload {
		p.close()
		return nil
	}
	return p
}

func (p *pipe) close() {
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

// get returns an empty pipe, or nil.
func (l *pipes) get() *pipe {
	if l.off.Load() {
		return nil
	}
	l.mu.Lock()
	p := l.idle
	if p != nil {
		l.idle, p.next = p.next, nil
	}
	l.mu.Unlock()
	if p != nil {
		p.left = -1
		return p
	}
	if l.s.stats.pipes.Add(1) > maxPipes {
		l.s.stats.pipes.Add(-1)
		return nil
	}
	if p = newPipe(); p == nil {
		l.s.stats.pipes.Add(-1)
		l.off.Store(true) // each try would cost as much as a copy
	}
	return p
}

// put takes a pipe back, and closes one that may hold pages.
func (l *pipes) put(p *pipe) {
	l.mu.Lock()
	if p.left == 0 && !l.ended {
		p.next, l.idle = l.idle, p
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	p.close()
	l.s.stats.pipes.Add(-1)
}

// end closes the pipes; no call of the stream is left.
func (l *pipes) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for p := l.idle; p != nil; p = p.next {
		p.close()
		l.s.stats.pipes.Add(-1)
	}
	l.idle = nil
}

// spliceOut moves up to n bytes from a pipe to a socket. more says that something of the same record follows.
func spliceOut(from int, to uintptr, n int, more bool) (int, syscall.Errno) {
	flags := uintptr(unix.SPLICE_F_NONBLOCK | unix.SPLICE_F_MOVE)
	if more {
		flags |= unix.SPLICE_F_MORE
	}
	k, _, e := syscall.Syscall6(unix.SYS_SPLICE, uintptr(from), 0, to, 0, uintptr(n), flags)
	return int(k), e
}

// refused reports an error of splice that says that it cannot be done here at all.
func refused(e syscall.Errno) bool {
	return e == unix.EINVAL || e == unix.ENOSYS || e == unix.EOPNOTSUPP || e == unix.EPERM
}

// take reads what is in the pipe into memory: for a socket that takes no pages. It is all there, so it does not wait.
func (p *pipe) take(b []byte) error {
	for done := 0; done < p.left; {
		n, err := unix.Read(p.r, b[done:p.left])
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return unix.EIO
		default:
			done += n
		}
	}
	p.left = 0
	return nil
}
