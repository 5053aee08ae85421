package shm

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" { // a process of kill_test.go's
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

const testTimeout = 60 * time.Second

func testCtx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// end is one side of a test connection.
type end struct {
	t   testing.TB
	dev *Device
	qp  *QP
	wc  [64]transport.WC
	got []transport.WC
}

type pairOptions struct {
	a, b   Options
	qo     transport.QPOptions
	source func(uint64) (mem.Span, bool) // of b's receives
	pa, pb transport.ConnParams
}

func newEnd(t testing.TB, o Options, qo transport.QPOptions) *end {
	t.Helper()
	if qo.Sends == 0 {
		qo = transport.QPOptions{Sends: 64, Recvs: 64}
	}
	d := New(o)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	q, err := d.NewQP(qo)
	if err != nil {
		t.Fatal(err)
	}
	return &end{t: t, dev: d, qp: q.(*QP)}
}

func reads(p transport.ConnParams) transport.ConnParams {
	if p.ReadsIn == 0 {
		p.ReadsIn, p.ReadsOut = 16, 16
	}
	return p
}

// pair connects two QPs; a dials.
func pair(t testing.TB, o pairOptions) (a, b *end) {
	t.Helper()
	ctx := testCtx(t)
	a, b = newEnd(t, o.a, o.qo), newEnd(t, o.b, o.qo)
	if o.source != nil && !b.qp.RecvMemory(o.source) {
		t.Fatal("receives without memory are not taken")
	}
	ln, err := b.dev.Listen(ctx, filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 1)
	go func() {
		r, err := ln.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, b.qp, reads(o.pb))
		}
		errs <- err
	}()
	if _, err := a.dev.Dial(ctx, ln.Addr().String(), a.qp, reads(o.pa)); err != nil {
		t.Fatal("dial:", err)
	}
	if err := <-errs; err != nil {
		t.Fatal("accept:", err)
	}
	return a, b
}

// slab is shared memory that the end's device knows.
func (e *end) slab(n int) mem.Span {
	e.t.Helper()
	s, err := mem.Shared.NewSlab(n)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.dev.Register(s); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		_ = e.qp.Close(transport.Reason{})
		if err := s.Close(); err != nil {
			e.t.Error(err)
		}
	})
	return mem.Span{Slab: s, Len: n}
}

// next returns the next completion.
func (e *end) next() transport.WC {
	e.t.Helper()
	ctx := testCtx(e.t)
	for len(e.got) == 0 {
		n, err := e.qp.Poll(e.wc[:])
		if err != nil {
			e.t.Fatal("poll:", err)
		}
		if n > 0 {
			e.got = append(e.got, e.wc[:n]...)
			break
		}
		if err := e.qp.Wait(ctx); err != nil {
			e.t.Fatal("wait:", err)
		}
	}
	wc := e.got[0]
	e.got = e.got[1:]
	return wc
}

// ok is next, and it must be a success of op and token.
func (e *end) ok(op transport.Op, token uint64) transport.WC {
	e.t.Helper()
	wc := e.next()
	if wc.Err != nil || wc.Op != op || wc.Token != token {
		e.t.Fatalf("completion %+v, want op %d token %d", wc, op, token)
	}
	return wc
}

// drain polls to the end and returns the reason.
func (e *end) drain() error {
	e.t.Helper()
	ctx := testCtx(e.t)
	for {
		n, err := e.qp.Poll(e.wc[:])
		e.got = append(e.got, e.wc[:n]...)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := e.qp.Wait(ctx); err != nil {
				e.t.Fatal("wait:", err)
			}
		}
	}
}

func (e *end) post(wrs ...transport.WR) {
	e.t.Helper()
	if n, err := e.qp.Post(wrs); err != nil {
		e.t.Fatalf("post %d of %d: %v", n, len(wrs), err)
	}
}

func (e *end) recv(token uint64, s mem.Span) {
	e.t.Helper()
	if _, err := e.qp.PostRecv([]transport.Recv{{Token: token, Buf: s}}); err != nil {
		e.t.Fatal(err)
	}
}

func (e *end) window() transport.Window {
	e.t.Helper()
	w, err := e.qp.NewWindow()
	if err != nil {
		e.t.Fatal(err)
	}
	return w
}

func (e *end) bind(local mem.Span, a transport.Access) transport.Window {
	e.t.Helper()
	w := e.window()
	e.post(transport.WR{Op: transport.OpBind, Window: w, Access: a, Local: []mem.Span{local}})
	return w
}

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + byte(i>>8)*13 + seed
	}
}

func filled(n int, seed byte) []byte {
	b := make([]byte, n)
	fill(b, seed)
	return b
}

func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what it should be", what)
	}
}

// memfds is how many mappings of files of memory this process has, and open descriptors of such.
func memfds(t testing.TB) (maps, fds int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	maps = strings.Count(string(b), "/memfd:")
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dir {
		if l, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && strings.HasPrefix(l, "/memfd:") {
			fds++
		}
	}
	return maps, fds
}

// sockets is how many sockets this process has open.
func sockets(t testing.TB) (n int) {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dir {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		if l, err := os.Readlink("/proc/self/fd/" + d.Name()); err == nil && strings.HasPrefix(l, "socket:") {
			n++
		}
	}
	return n
}
