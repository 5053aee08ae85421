package shm

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/transport"
)

// sleepy is a file whose file system, when it is shut, answers neither fstat(2) nor close(2) until it is opened.
type sleepy struct {
	fs.Inode
	shut atomic.Bool
	open chan struct{}
}

func (s *sleepy) wait() {
	if s.shut.Load() {
		<-s.open
	}
}

func (s *sleepy) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	s.wait()
	out.Mode, out.Size = unix.S_IFREG|0o600, 4096
	return 0
}

func (s *sleepy) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return s, 0, 0
}

func (s *sleepy) Flush(context.Context) syscall.Errno {
	s.wait()
	return 0
}

// A file whose system waits for the peer, when it is looked at and when it is closed, holds neither the owner of a connection nor the listener.
func TestAFileThatWaitsHoldsNothingUp(t *testing.T) {
	need.FUSE(t)
	dir := t.TempDir()
	root, file := &fs.Inode{}, &sleepy{open: make(chan struct{})}
	srv, err := fs.Mount(dir, root, &fs.Options{OnAdd: func(ctx context.Context) {
		root.AddChild("f", root.NewPersistentInode(ctx, file, fs.StableAttr{Mode: unix.S_IFREG}), true)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Unmount(); err != nil {
			t.Error(err)
		}
	}()
	f, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var late atomic.Bool
	file.shut.Store(true)
	alarm := time.AfterFunc(testTimeout/4, func() {
		late.Store(true)
		close(file.open)
	})
	defer func() {
		if alarm.Stop() {
			close(file.open)
		}
	}()

	l, e := lie(t, Options{}, transport.QPOptions{})
	l.send(l.slabMsg(0, 4096), int(f.Fd()))
	var no *transport.TerminateError
	if err := e.drain(); !errors.As(err, &no) || !strings.Contains(err.Error(), "no file of ordinary memory") || late.Load() {
		t.Errorf("ended with %v, when the file system answered: %t", err, late.Load())
	}
	other, ln := listening(t, Options{}, transport.QPOptions{})
	c := rawDial(t, ln.Addr().String())
	if err := sendHello(c, &hello{kind: msgRequest, slots: minSlots}, int(f.Fd())); err != nil {
		t.Fatal(err)
	}
	if h, _, err := readHello(c); err != nil || h.kind != msgRefusal {
		t.Errorf("a request with the file: %+v, %v", h, err)
	}
	if err := errors.Join(ln.Close(), other.dev.Close()); err != nil || late.Load() {
		t.Errorf("%v, when the file system answered: %t", err, late.Load())
	}
}

// Memory of a peer's that the machine cannot read any more ends its connection, and not this process.
func TestMemoryThatCannotBeReadEndsItsConnection(t *testing.T) {
	l, e := lie(t, Options{}, transport.QPOptions{})
	m := e.slab(4096)
	e.recv(1, m.Cut(0, 1024))
	l.send(l.slabMsg(0, 4096), file(t, 4096, mem.Seals))
	e.until(func() bool { return shownTo(e) == 1 })
	fd := file(t, 4096, 0) // in the place of that one is one without a page
	b, err := syscall.Mmap(fd, 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)
	if err == nil {
		err = unix.Ftruncate(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	unmap(e.qp.rx.seen.maps[0].b)
	e.qp.rx.seen.maps[0].b = b
	l.put(raw(record{op: opSend, size: 1024, pieces: []piece{{n: 1024}}}))
	if err := e.drain(); !errors.Is(err, stream) || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("ended with %v", err)
	}
	if len(e.got) != 1 || e.got[0].Err == nil {
		t.Errorf("came back: %+v", e.got)
	}
}
