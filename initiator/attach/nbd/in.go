package nbd

import (
	"errors"
	"io"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/mem"
)

// input reads a connection: headers and short payloads through a buffer, so that requests that came together are read
// together; longer payloads into registered memory, and what follows them into the buffer by the same system call.
type input struct {
	sock *sockio.Reader
	buf  []byte
	from int // buf[from:to] has been read and not used
	to   int
	long bool // the last payload was: then the buffer takes no more than a header, and the next payload is not copied

	iov []unix.Iovec
}

func (in *input) init(raw syscall.RawConn) {
	in.sock, in.buf = sockio.NewReader(raw), make([]byte, inputBuf)
}

func (in *input) buffered() int { return in.to - in.from }

// readv is one system call into the memory of iov and then into the buffer, which is empty. It says how much came.
func (in *input) readv() (int, error) {
	room := in.buf[in.to:]
	if in.long {
		room = room[:min(len(room), requestLen)]
	}
	in.iov = sockio.Append(in.iov, room)
	return in.sock.Read(in.iov)
}

// next is the next n bytes, valid until the next call. The end of the connection within them is io.ErrUnexpectedEOF.
func (in *input) next(n int) ([]byte, error) {
	if in.buffered() < n {
		in.to = copy(in.buf, in.buf[in.from:in.to])
		in.from = 0
	}
	for in.buffered() < n {
		in.iov = in.iov[:0]
		k, err := in.readv()
		if err != nil {
			if errors.Is(err, io.EOF) && in.to > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		in.to += k
	}
	b := in.buf[in.from : in.from+n]
	in.from += n
	return b, nil
}

// fill reads the payload of a write.
func (in *input) fill(spans []mem.Span) error {
	in.iov = in.iov[:0]
	total := int(mem.Total(spans))
	k := mem.Scatter(spans, 0, in.buf[in.from:in.to])
	in.from += k
	left := total - k
	in.long = total >= longPayload
	for left > 0 {
		in.from, in.to = 0, 0
		in.iov = in.iov[:0]
		for c := mem.At(spans, int64(total-left)); ; {
			b := c.Next(left)
			if len(b) == 0 {
				break
			}
			in.iov = sockio.Append(in.iov, b)
		}
		k, err := in.readv()
		if err != nil {
			return err
		}
		if k > left {
			in.to = k - left
			k = left
		}
		left -= k
	}
	return nil
}

// discard reads n bytes and drops them.
func (in *input) discard(n int) error {
	for n > 0 {
		k := min(n, len(in.buf))
		if in.buffered() > 0 {
			k = min(k, in.buffered())
		}
		if _, err := in.next(k); err != nil {
			return err
		}
		n -= k
	}
	return nil
}
