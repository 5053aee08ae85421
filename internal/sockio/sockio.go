// Package sockio reads and writes stream sockets in pieces: one readv or sendmsg a call, straight from and to memory that lies in
// several places, without an allocation.
//
// The calls are raw ones. They do not block, and a copy of 128 KiB takes longer than the 20 us after which the runtime would give the
// processor of an ordinary system call to a thread that it wakes for that. Waiting is the runtime's: a Reader and a Writer go through a
// syscall.RawConn, whose poller they park in.
package sockio

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxIovecs is how many pieces one call takes (UIO_MAXIOV).
const MaxIovecs = 1024

// Raw is what reads and writes nc go through, nil where they have to be nc's own. A connection that has a descriptor because it
// embeds a socket may do something else with its bytes, such as to encrypt them.
func Raw(nc net.Conn) syscall.RawConn {
	var raw syscall.RawConn
	var err error
	switch c := nc.(type) {
	case *net.TCPConn:
		raw, err = c.SyscallConn()
	case *net.UnixConn:
		raw, err = c.SyscallConn()
	}
	if err != nil {
		return nil // it is closed, and says so itself
	}
	return raw
}

// Append adds b to a list of pieces, unless it is empty.
func Append(iov []unix.Iovec, b []byte) []unix.Iovec {
	if len(b) == 0 {
		return iov
	}
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return append(iov, v)
}

// Advance is what is left of pieces behind their first n bytes. It changes the piece in which those end.
func Advance(iov []unix.Iovec, n int) []unix.Iovec {
	for n > 0 {
		v := &iov[0]
		if l := int(v.Len); n >= l {
			iov, n = iov[1:], n-l
			continue
		}
		v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
		v.SetLen(int(v.Len) - n)
		break
	}
	return iov
}

// Readv is one readv of a descriptor that does not block: at most MaxIovecs pieces, at least one. 0 bytes without an error are the end.
func Readv(fd uintptr, iov []unix.Iovec) (int, unix.Errno) {
	for {
		n, _, e := unix.RawSyscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(min(len(iov), MaxIovecs)))
		if e == 0 {
			return int(n), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// Sendv is one sendmsg that does not block and raises no signal, of at most MaxIovecs pieces and at least one. flags are added.
func Sendv(fd uintptr, iov []unix.Iovec, flags int) (int, unix.Errno) {
	var hdr unix.Msghdr
	hdr.Iov = &iov[0]
	hdr.SetIovlen(min(len(iov), MaxIovecs))
	for {
		n, _, e := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&hdr)), uintptr(flags|unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT))
		if e == 0 {
			return int(n), 0
		}
		if e != unix.EINTR {
			return 0, e
		}
	}
}

// Reader reads a socket, for one goroutine.
type Reader struct {
	raw syscall.RawConn
	try func(uintptr) bool
	iov []unix.Iovec
	n   int
	e   unix.Errno
}

// NewReader makes a reader.
func NewReader(raw syscall.RawConn) *Reader {
	r := &Reader{raw: raw}
	r.try = func(fd uintptr) bool {
		r.n, r.e = Readv(fd, r.iov)
		return r.e != unix.EAGAIN
	}
	return r
}

// Read waits until there is something and reads once. The end of the stream is io.EOF.
func (r *Reader) Read(iov []unix.Iovec) (int, error) {
	r.iov = iov
	err := r.raw.Read(r.try)
	r.iov = nil
	switch {
	case err != nil:
		return 0, err
	case r.e != 0:
		return 0, r.e
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// Writer writes a socket, for one goroutine at a time.
type Writer struct {
	raw  syscall.RawConn
	try  func(uintptr)
	wait func(uintptr) bool
	iov  []unix.Iovec
	n    int
	e    unix.Errno
}

// NewWriter makes a writer.
func NewWriter(raw syscall.RawConn) *Writer {
	w := &Writer{raw: raw}
	w.try = func(fd uintptr) { w.n, w.e = Sendv(fd, w.iov, 0) }
	w.wait = func(fd uintptr) bool {
		w.n, w.e = Sendv(fd, w.iov, 0)
		return w.e != unix.EAGAIN
	}
	return w
}

// Try writes once, as much as the socket takes now, whatever the deadline; unix.EAGAIN says that it is full.
func (w *Writer) Try(iov []unix.Iovec) (int, error) {
	w.iov = iov
	return w.end(w.raw.Control(w.try))
}

// Write waits until there is room and writes once.
func (w *Writer) Write(iov []unix.Iovec) (int, error) {
	w.iov = iov
	return w.end(w.raw.Write(w.wait))
}

// WriteAll writes until nothing is left. It changes the pieces.
func (w *Writer) WriteAll(iov []unix.Iovec) error {
	for len(iov) > 0 {
		n, err := w.Write(iov)
		if err != nil {
			return err
		}
		iov = Advance(iov, n)
	}
	return nil
}

func (w *Writer) end(err error) (int, error) {
	w.iov = nil
	switch {
	case err != nil:
		return 0, err
	case w.e != 0:
		return 0, w.e
	}
	return w.n, nil
}
