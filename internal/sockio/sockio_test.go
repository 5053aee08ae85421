package sockio

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func pair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

func rw(t testing.TB, a, b *net.TCPConn) (*Writer, *Reader) {
	t.Helper()
	wr, err := a.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	rr, err := b.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	return NewWriter(wr), NewReader(rr)
}

// cut makes pieces of b, of which some are empty.
func cut(rnd *rand.Rand, b []byte, most int) (iov []unix.Iovec) {
	for len(b) > 0 {
		n := min(rnd.Intn(most), len(b))
		iov, b = Append(iov, b[:n]), b[n:]
	}
	return iov
}

func TestPiecesArriveAsOneStream(t *testing.T) {
	rnd := rand.New(rand.NewSource(1))
	a, b := pair(t)
	w, r := rw(t, a, b)
	src := make([]byte, 3<<20)
	_, _ = rnd.Read(src)
	sent := make(chan error, 1)
	go func() {
		sent <- func() error {
			if err := w.WriteAll(cut(rand.New(rand.NewSource(2)), src, 2000)); err != nil {
				return err
			}
			return a.CloseWrite()
		}()
	}()
	dst := make([]byte, len(src))
	for iov := cut(rnd, dst, 3000); len(iov) > 0; {
		n, err := r.Read(iov)
		if err != nil {
			t.Fatal(err)
		}
		iov = Advance(iov, n)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(src, dst) {
		t.Error("other bytes arrived")
	}
	if n, err := r.Read(Append(nil, dst)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("behind the end: %d, %v", n, err)
	}
}

func TestAFullSocketSaysSoAndWaitsWhereItMay(t *testing.T) {
	a, b := pair(t)
	w, r := rw(t, a, b)
	iov := Append(nil, make([]byte, 1<<16))
	full := 0
	for {
		n, err := w.Try(iov)
		if err != nil {
			if !errors.Is(err, unix.EAGAIN) {
				t.Fatal(err)
			}
			break
		}
		full += n
	}
	if err := a.SetWriteDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(iov); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write that may not wait any more: %v", err)
	}
	if err := a.SetWriteDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	go func() {
		_, err := w.Write(iov)
		wrote <- err
	}()
	dst := Append(nil, make([]byte, 1<<16))
	for got := 0; got < full; {
		n, err := r.Read(dst)
		if err != nil {
			t.Fatal(err)
		}
		got += n
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	_ = b.Close()
	if _, err := r.Read(dst); err == nil {
		t.Error("a closed socket is read")
	}
}

func TestReadAndWriteAllocateNothing(t *testing.T) {
	a, b := pair(t)
	w, r := rw(t, a, b)
	buf := make([]byte, 4096)
	out, in := Append(Append(nil, buf[:48]), buf[48:]), Append(nil, make([]byte, 4096))
	n := testing.AllocsPerRun(200, func() {
		if _, err := w.Try(out); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(in); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A connection that does something of its own with its bytes is not passed by.
func TestOnlyPlainSocketsAreRaw(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if Raw(c) == nil {
		t.Error("a TCP connection is not raw")
	}
	if Raw(struct{ *net.TCPConn }{c.(*net.TCPConn)}) != nil {
		t.Error("what embeds a TCP connection is raw")
	}
}
