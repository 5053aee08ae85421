package rpcserver

import (
	"bytes"
	"context"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

const (
	procLend   = 1 // a file's bytes from 0 on, as many as the word says, by Loan where that can be had
	procForget = 2 // puts bytes in a pipe and answers with an error
	procBytes  = 3 // the same as procLend by Sink
)

// library is a program that lends a file of 1 MiB.
type library struct {
	t    *testing.T
	file *os.File
	want []byte
	lent sync.Map // sizes that were lent
}

func newLibrary(t *testing.T) *library {
	l := &library{t: t, want: make([]byte, MaxPayload)}
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(l.want)
	name := filepath.Join(t.TempDir(), "book")
	if err := os.WriteFile(name, l.want, 0o600); err != nil {
		t.Fatal(err)
	}
	var err error
	if l.file, err = os.Open(name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.file.Close() })
	return l
}

func (*library) ID() uint32                   { return 400000 }
func (*library) Versions() (low, high uint32) { return 1, 1 }
func (*library) Keeps(_, _ uint32) bool       { return false }
func (*library) Classify(*Call) Class         { return Inline }
func (l *library) Serve(c *Call) Verdict {
	n := int(c.Args.Uint32())
	c.Out = xdr.AppendUint32(c.Out, uint32(n))
	if fd, ok := c.Loan(n, 0); ok && c.Proc != procBytes {
		off := int64(0)
		for off < int64(n) {
			k, err := unix.Splice(int(l.file.Fd()), &off, fd, nil, n-int(off), unix.SPLICE_F_NONBLOCK)
			if err != nil || k == 0 {
				l.t.Error(k, err)
				return c.Fail(SystemErr)
			}
		}
		if c.Proc == procForget {
			return c.Fail(SystemErr)
		}
		l.lent.Store(n, true)
		c.SetPayload(n)
		return Done
	}
	sink, err := c.Sink(n)
	if err != nil {
		return c.Fail(SystemErr)
	}
	copy(sink[0], l.want)
	c.SetPayload(n)
	return Done
}

func (l *library) serve(o Options, splice func(int, uintptr, int, bool) (int, syscall.Errno)) (*Server, string) {
	l.t.Helper()
	s := NewServer(o, l)
	if splice != nil {
		s.splice = splice
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		l.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeTCP(ln) }()
	l.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			l.t.Error(err)
		}
		<-done
		if n := s.stats.pipes.Load(); n != 0 {
			l.t.Errorf("%d pipes are left", n)
		}
	})
	return s, ln.Addr().String()
}

// check asks for sizes of one procedure, all at once, and compares what comes.
func (l *library) check(nc net.Conn, proc uint32, sizes ...int) {
	l.t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, n := range sizes {
			_, _ = nc.Write(record(uint32(n), proc, uint32(n)))
		}
	})
	defer wg.Wait()
	left := make(map[int]int)
	for _, n := range sizes {
		left[n]++
	}
	for range sizes {
		xid, v, rest, err := answer(l.t, nc)
		if err != nil || xid != v {
			l.t.Fatal(xid, v, err)
		}
		n := int(v)
		if left[n]--; left[n] < 0 {
			l.t.Fatalf("%d bytes, which nobody asked for", n)
		}
		if len(rest) != n+xdr.Pad(n) || !bytes.Equal(rest[:n], l.want[:n]) || !bytes.Equal(rest[n:], make([]byte, xdr.Pad(n))) {
			l.t.Fatalf("%d bytes of %d, or others than those of the file, or padding that is not zero", len(rest), n)
		}
	}
}

var loanSizes = []int{0, 1, 4095, minLoan - 1, minLoan, minLoan + 1, minLoan + 2, minLoan + 3, 500_001, MaxPayload - 4097, MaxPayload - 1, MaxPayload}

func TestLoansOfAllSizes(t *testing.T) {
	for name, o := range map[string]Options{"inline": {}, "by workers": {NoInline: true}} {
		t.Run(name, func(t *testing.T) {
			l := newLibrary(t)
			s, addr := l.serve(o, nil)
			nc := dial(t, addr)
			for range 5 {
				l.check(nc, procLend, loanSizes...)
			}
			for _, n := range loanSizes {
				if _, lent := l.lent.Load(n); lent != (n >= minLoan) {
					t.Errorf("%d bytes: lent %v", n, lent)
				}
			}
			if c := s.Stats(); c.Lent == 0 || c.CopiedOut["+Inf"] != 0 {
				t.Errorf("%+v", c)
			}
			if n := s.stats.pipes.Load(); n > int64(len(loanSizes)) {
				t.Errorf("%d pipes for %d calls at a time", n, len(loanSizes))
			}
		})
	}
}

func TestLoansCanBeSwitchedOff(t *testing.T) {
	l := newLibrary(t)
	s, addr := l.serve(Options{NoLoan: true}, nil)
	l.check(dial(t, addr), procLend, loanSizes...)
	if n := s.Stats().Lent; n != 0 {
		t.Errorf("%d bytes lent", n)
	}
}

// A socket that takes no pages is sent bytes, and offered no pages again.
func TestSpliceIsRefused(t *testing.T) {
	l := newLibrary(t)
	var tries int
	s, addr := l.serve(Options{}, func(int, uintptr, int, bool) (int, syscall.Errno) { tries++; return 0, unix.EINVAL })
	nc := dial(t, addr)
	l.check(nc, procLend, MaxPayload-1)
	l.check(nc, procLend, loanSizes...)
	if c := s.Stats(); tries != 1 || c.Lent != 0 || c.CopiedOut["+Inf"] != MaxPayload-1 {
		t.Errorf("%d tries, %+v", tries, c)
	}
}

// What is in a pipe that a call has left must never be part of another's reply.
func TestLoanThatIsNotGiven(t *testing.T) {
	l := newLibrary(t)
	_, addr := l.serve(Options{}, nil)
	nc := dial(t, addr)
	for range 5 {
		write(t, nc, record(1, procForget, minLoan))
		if _, _, _, err := answer(t, nc); err == nil {
			t.Fatal("no error")
		}
		l.check(nc, procLend, MaxPayload)
	}
}

// Pages and memory, parts that the socket takes one by one, and a client that takes its time.
func TestLoansAmongOthersToASlowClient(t *testing.T) {
	l := newLibrary(t)
	_, addr := l.serve(Options{}, func(from int, to uintptr, n int, more bool) (int, syscall.Errno) {
		if n > 100_000 {
			n = 77_777 // as if the socket had no more room
		}
		return spliceOut(from, to, n, more)
	})
	var wg sync.WaitGroup
	for i := range 3 {
		nc := dial(t, addr)
		if err := nc.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for k := range 4 {
				l.check(nc, procLend+uint32((i+k)%2)*(procBytes-procLend), MaxPayload, minLoan+i, 3, MaxPayload-5, 4, minLoan)
			}
		})
	}
	wg.Wait()
}

// A client that asks and goes away leaves no pipes behind, nor does one that never reads.
func TestLoansToAClientThatIsGone(t *testing.T) {
	l := newLibrary(t)
	s, addr := l.serve(Options{}, nil)
	for range 3 {
		nc := dial(t, addr)
		for i := range uint32(50) {
			write(t, nc, record(i, procLend, MaxPayload))
		}
		if err := nc.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		_ = nc.Close()
	}
	idle := dial(t, addr)
	for i := range uint32(50) {
		write(t, idle, record(i, procLend, MaxPayload))
	}
	l.check(dial(t, addr), procLend, MaxPayload, 7)
	deadline := time.Now().Add(patience)
	for s.stats.pipes.Load() > maxHeld/MaxPayload+3 {
		if time.Now().After(deadline) {
			t.Fatalf("%d pipes", s.stats.pipes.Load())
		}
		time.Sleep(time.Millisecond) // the connections end by themselves
	}
}

func TestLoansAreFewerThanPipes(t *testing.T) {
	l := newLibrary(t)
	s, addr := l.serve(Options{}, nil)
	s.stats.pipes.Add(maxPipes)
	l.check(dial(t, addr), procLend, loanSizes...)
	if n := s.Stats().Lent; n != 0 {
		t.Errorf("%d bytes lent without a pipe", n)
	}
	s.stats.pipes.Add(-maxPipes)
}

// Bulk data of a call is placed once: nothing of it passes through the look-ahead when one follows another.
func TestBulkArgumentsAreNotCopied(t *testing.T) {
	p := &taker{}
	s := NewServer(Options{}, p)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeTCP(ln) }()
	nc := dial(t, ln.Addr().String())
	want := make([]byte, 128<<10)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(want)
	const calls = 40
	var stream []byte
	for i := range uint32(calls) {
		c := oncrpc.Call{XID: i, Prog: 400000, Vers: 1, Proc: 1}
		b := xdr.AppendUint32(c.Append(make([]byte, 4)), uint32(len(want)))
		want[0] = byte(i)
		b = append(b, want...)
		oncrpc.PutMark(b, len(b)-4, true)
		stream = append(stream, b...)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = nc.Write(stream) })
	for range calls {
		xid, v, _, err := answer(t, nc)
		want[0] = byte(xid)
		if err != nil || v != sum(want) {
			t.Fatalf("call %d: %d, %v", xid, v, err)
		}
	}
	wg.Wait()
	// The first call came when nobody knew yet.
	if n := s.Stats().CopiedIn["+Inf"]; n >= 128<<10 {
		t.Errorf("%d bytes copied of %d", n, calls*len(want))
	}
	if p.crooked.Load() != 0 {
		t.Errorf("%d of %d buffers do not begin with a page", p.crooked.Load(), calls)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-done
}

// taker is a program that adds up what it gets.
type taker struct{ crooked atomic.Int32 }

func (*taker) ID() uint32                   { return 400000 }
func (*taker) Versions() (low, high uint32) { return 1, 1 }
func (*taker) Keeps(_, _ uint32) bool       { return false }
func (*taker) Classify(*Call) Class         { return Inline }
func (p *taker) Serve(c *Call) Verdict {
	data, err := c.Data(int(c.Args.Uint32()))
	if err != nil {
		return c.Garbage()
	}
	if uintptr(unsafe.Pointer(unsafe.SliceData(data[0])))%bodyAlign != 0 {
		p.crooked.Add(1)
	}
	c.Out = xdr.AppendUint32(c.Out, sum(data[0]))
	return Done
}

func sum(b []byte) uint32 { return crc32.ChecksumIEEE(b) }
