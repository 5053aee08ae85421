package nfs_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// held is storage whose first Pwrite waits, and which counts those of each first byte.
type held struct {
	forgetful
	once     sync.Once
	in, free chan struct{}
	count    [256]int // guarded by forgetful's lock
}

func (h *held) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	h.once.Do(func() { close(h.in); <-h.free })
	h.mu.Lock()
	h.count[bufs[0][0]]++
	h.mu.Unlock()
	return h.forgetful.Pwrite(fd, bufs, n, off, sync)
}

// wire is one connection whose records are of the test's own making.
type wire struct {
	net.Conn
	t    *testing.T
	cred oncrpc.Auth
}

func (s *server) wire(t *testing.T) *wire {
	t.Helper()
	nc, err := net.Dial("tcp", s.hostPort(t))
	must(t, err)
	t.Cleanup(func() { _ = nc.Close() })
	must(t, nc.SetDeadline(time.Now().Add(patience)))
	sys := oncrpc.Sys{}
	w := &wire{nc, t, oncrpc.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "test")}}
	w.send(1, nfs3.ProcNull, nil)
	must(t, w.answer())
	return w
}

func (w *wire) send(xid uint32, p nfs3.Proc, args []byte) {
	w.t.Helper()
	must(w.t, w.put(xid, p, args))
}

func (w *wire) put(xid uint32, p nfs3.Proc, args []byte) error {
	c := oncrpc.Call{XID: xid, Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(p), Cred: w.cred}
	b := append(c.Append(make([]byte, 4)), args...)
	oncrpc.PutMark(b, len(b)-4, true)
	_, err := w.Write(b)
	return err
}

// answer takes one reply.
func (w *wire) answer() error {
	var mark [4]byte
	if _, err := io.ReadFull(w, mark[:]); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, w, int64(binary.BigEndian.Uint32(mark[:])&^(1<<31)))
	return err
}

// begun waits until the server has begun n calls in all.
func (s *server) begun(t *testing.T, n uint64) {
	t.Helper()
	for end := time.Now().Add(patience); s.rpc.Stats().Calls < n; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d calls have begun, not %d", s.rpc.Stats().Calls, n)
		}
	}
}

// A client gives a connection up while the server holds a WRITE of it, for whatever reason, repeats it on another, and goes on.
// The first one is not executed when what held it is over: it would take back what was written after the repetition.
func TestAWriteThatWaitedIsNotExecutedAfterItsRepetition(t *testing.T) {
	h := &held{in: make(chan struct{}), free: make(chan struct{})}
	s := start(t, "tcp", nfs.Options{Storage: h}, rpcserver.Options{NoInline: true}, nfs.Export{Rights: open})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o666))
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	fh := r.lookup(root, "f").FH
	old := s.wire(t)
	other := make(chan nfs3.WriteRes, 1)
	go func() { other <- r.write(fh, 8, []byte("other..."), nfs3.FileSync) }() // holds the file
	<-h.in
	args := func(data string) []byte {
		a := nfs3.WriteArgs{FH: fh, Count: uint32(len(data)), Stable: nfs3.FileSync, Len: uint32(len(data))}
		return append(a.Append(nil), data...)
	}
	n := s.rpc.Stats().Calls
	old.send(7, nfs3.ProcWrite, args("1st data"))
	s.begun(t, n+1)
	next := s.wire(t)
	n = s.rpc.Stats().Calls
	next.send(7, nfs3.ProcWrite, args("1st data"))
	s.begun(t, n+1)
	close(h.free)
	must(t, next.answer())
	next.send(8, nfs3.ProcWrite, args("2nd data"))
	must(t, next.answer())
	if err := old.answer(); err == nil {
		t.Error("a WRITE is executed although it was repeated on another connection")
	}
	if w := <-other; w.Status != nfs3.OK {
		t.Error(w.Status)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.count['1'] != 1 || h.count['2'] != 1 {
		t.Errorf("the first data was written %d times, the second %d times", h.count['1'], h.count['2'])
	}
	got, err := os.ReadFile(filepath.Join(s.dir, "f"))
	must(t, err)
	if !bytes.Equal(got, []byte("2nd dataother...")) {
		t.Errorf("the file holds %q", got)
	}
}

// A change of size that reaches the server by a connection that its client has left, after its repetition, is not executed,
// also where its reply is kept no more.
func TestALateChangeOfSizeIsNotExecuted(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	for _, name := range []string{"f", "g"} {
		must(t, os.WriteFile(filepath.Join(s.dir, name), []byte("before"), 0o666))
	}
	busy := s.wire(t) // the oldest: what it sends repeats nothing
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	f, g := r.lookup(root, "f").FH, r.lookup(root, "g").FH
	old := s.wire(t)
	next := s.wire(t)
	set := func(fh []byte, attr nfs3.SetAttr) []byte {
		a := nfs3.SetattrArgs{FH: fh, Attr: attr}
		return a.Append(nil)
	}
	empty := set(f, nfs3.SetAttr{SizeSet: true})
	next.send(7, nfs3.ProcSetattr, empty)
	must(t, next.answer())
	r.write(f, 0, []byte("after it"), nfs3.FileSync)
	const others = 12_000 // more than replies are kept
	done := make(chan error, 1)
	go func() {
		for range others {
			if err := busy.answer(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range uint32(others) {
		busy.send(100+i, nfs3.ProcSetattr, set(g, nfs3.SetAttr{ModeSet: true, Mode: 0o600 + i%8}))
	}
	must(t, <-done)
	old.send(7, nfs3.ProcSetattr, empty)
	if err := old.answer(); err == nil {
		t.Error("a connection that brings what came by a newer one goes on")
	}
	got, err := os.ReadFile(filepath.Join(s.dir, "f"))
	must(t, err)
	if string(got) != "after it" {
		t.Errorf("the file holds %q", got)
	}
}
