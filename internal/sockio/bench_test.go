package sockio

import (
	"fmt"
	"net"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The ways that were and the one that is, one beside the other: a header of 48 bytes and a payload there, a header of 48 bytes back.
func BenchmarkExchange(b *testing.B) {
	for _, size := range []int{4 << 10, 128 << 10, 1 << 20} {
		for _, way := range []string{"netbuffers", "syscall", "raw"} {
			b.Run(fmt.Sprintf("%s/%dK", way, size>>10), func(b *testing.B) { exchange(b, way, size) })
		}
	}
}

func exchange(b *testing.B, way string, size int) {
	client, server := pair(b)
	served := make(chan struct{})
	go func() {
		defer close(served)
		head, body := make([]byte, 48), make([]byte, size)
		read, write := ways(b, way, server)
		for read(head, body) == nil && write(head, nil) == nil {
			continue
		}
	}()
	head, body := make([]byte, 48), make([]byte, size)
	read, write := ways(b, way, client)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if err := write(head, body); err != nil {
			b.Fatal(err)
		}
		if err := read(head, nil); err != nil {
			b.Fatal(err)
		}
	}
	_ = client.Close()
	<-served
}

// ways are a read and a write of all of two pieces.
func ways(b *testing.B, way string, c *net.TCPConn) (read, write func(x, y []byte) error) {
	raw, err := c.SyscallConn()
	if err != nil {
		b.Fatal(err)
	}
	iov, out := make([]unix.Iovec, 0, 2), make([]unix.Iovec, 0, 2)
	r, w := NewReader(raw), NewWriter(raw)
	var in, to []unix.Iovec
	var n int
	var e unix.Errno
	call := func(trap uintptr, v *[]unix.Iovec) func(uintptr) bool {
		return func(fd uintptr) bool {
			k, _, ce := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&(*v)[0])), uintptr(len(*v)))
			n, e = int(k), ce
			return e != unix.EAGAIN
		}
	}
	readv, writev := call(unix.SYS_READV, &in), call(unix.SYS_WRITEV, &to)
	read = func(x, y []byte) error {
		for in = Append(Append(iov[:0], x), y); len(in) > 0; {
			k, err := 0, error(nil)
			if way == "raw" {
				k, err = r.Read(in)
			} else if err = raw.Read(readv); err == nil {
				if k = n; e != 0 {
					err = e
				}
			}
			if err != nil || k == 0 {
				return fmt.Errorf("read: %w", err)
			}
			in = Advance(in, k)
		}
		return nil
	}
	bufs := make(net.Buffers, 0, 2)
	write = func(x, y []byte) error {
		if way == "netbuffers" {
			v := append(bufs[:0], x)
			if len(y) > 0 {
				v = append(v, y)
			}
			_, err := v.WriteTo(c)
			return err
		}
		for to = Append(Append(out[:0], x), y); len(to) > 0; {
			k, err := 0, error(nil)
			if way == "raw" {
				k, err = w.Write(to)
			} else if err = raw.Write(writev); err == nil {
				if k = n; e != 0 {
					err = e
				}
			}
			if err != nil {
				return err
			}
			to = Advance(to, k)
		}
		return nil
	}
	return read, write
}
