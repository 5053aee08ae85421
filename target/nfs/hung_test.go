package nfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// hung is storage that does not come back from flushing some devices.
type hung struct {
	forgetful
	devs   sync.Map
	free   chan struct{}
	synced atomic.Int32 // flushes of others
}

func (h *hung) Sync(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if _, hangs := h.devs.Load(st.Dev); hangs {
		<-h.free
		return nil
	}
	h.synced.Add(1)
	return h.forgetful.Sync(fd)
}

// hang is for the device that a directory is of.
func (h *hung) hang(t *testing.T, dir string) {
	var st unix.Stat_t
	must(t, unix.Stat(dir, &st))
	h.devs.Store(st.Dev, true)
}

// An export whose medium hangs can be taken away, and the files of others are flushed and closed, though its own cannot be.
func TestAMediumThatHangsHoldsUpNoChangeOfExports(t *testing.T) {
	bad, err := os.MkdirTemp("/dev/shm", "sluice-hung")
	must(t, err)
	defer func() { must(t, os.RemoveAll(bad)) }()
	h := &hung{free: make(chan struct{})}
	a, b := nfs.Export{Path: "/a", Dir: t.TempDir(), Rights: open}, nfs.Export{Path: "/b", Dir: bad, Rights: open}
	s := start(t, "tcp", nfs.Options{Storage: h}, rpcserver.Options{}, a)
	defer close(h.free) // before the server is closed
	must(t, s.nfs.SetExports(a, b))
	r := s.raw(t, 0, 0)
	for _, e := range []nfs.Export{a, b} {
		must(t, os.WriteFile(filepath.Join(e.Dir, "f"), nil, 0o666))
		root, _ := r.mount(e.Path)
		r.unstable(r.lookup(root, "f").FH, 0, []byte("data"))
	}
	h.hang(t, bad)
	a.ReadOnly = true
	done := make(chan error, 1)
	go func() { done <- s.nfs.SetExports(a) }()
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("an export whose medium hangs cannot be taken away")
	}
	if h.synced.Load() == 0 {
		t.Error("a file on a sound medium is not flushed")
	}
	root, _ := r.mount("/a")
	if st := r.lookup(root, "f").Status; st != 0 {
		t.Error(st)
	}
}

// rdma is raw over RDMA.
func (s *server) rdma(t *testing.T) *raw {
	dev, err := rpcclient.NewRDMA(s.opts.Device)
	must(t, err)
	r := &raw{t: t, c: rpcclient.NewClient(dev.Dialer(s.hostPort(t)), rpcclient.Options{})}
	r.cred = rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: (&oncrpc.Sys{}).Append(nil, 1, "test")}
	t.Cleanup(func() { must(t, errors.Join(r.c.Close(), dev.Close())) })
	return r
}

// Media that hang take neither all credits of an RDMA connection nor all that a TCP connection may have in flight.
func TestMediaThatHangLeaveRoomOnTheirConnections(t *testing.T) {
	need.Root(t)
	bad, err := os.MkdirTemp("/dev/shm", "sluice-hung")
	must(t, err)
	defer func() { must(t, os.RemoveAll(bad)) }()
	worse := t.TempDir()
	must(t, unix.Mount("sluice-hung", worse, "tmpfs", 0, ""))
	defer func() { must(t, unix.Unmount(worse, unix.MNT_DETACH)) }()
	a, b, c := nfs.Export{Path: "/a", Dir: t.TempDir(), Rights: open}, nfs.Export{Path: "/b", Dir: bad, Rights: open}, nfs.Export{Path: "/c", Dir: worse, Rights: open}
	for _, how := range []string{"iwarp", "tcp"} {
		t.Run(how, func(t *testing.T) {
			h := &hung{free: make(chan struct{})}
			s := start(t, how, nfs.Options{Storage: h}, rpcserver.Options{}, a)
			must(t, s.nfs.SetExports(a, b, c))
			r, media, calls := s.raw, []nfs.Export{b, c}, 250
			if how == "iwarp" {
				r, media, calls = func(t *testing.T, _, _ uint32) *raw { return s.rdma(t) }, media[:1], 40
			}
			client := r(t, 0, 0)
			defer close(h.free) // before the server is closed
			root, _ := client.mount("/a")
			var files [][]byte
			for _, e := range media {
				must(t, os.WriteFile(filepath.Join(e.Dir, "f"), nil, 0o666))
				top, _ := client.mount(e.Path)
				files = append(files, client.lookup(top, "f").FH)
				client.unstable(files[len(files)-1], 0, []byte("data"))
				h.hang(t, e.Dir)
			}
			answers := make(chan error, calls)
			for i := range calls {
				go func() {
					args := nfs3.RangeArgs{FH: files[i%len(files)]}
					_, err := client.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcCommit), args.Append(nil))
					answers <- err
				}()
			}
			full := map[string]int{"iwarp": 16, "tcp": 128}[how] // credits that a connection begins with, slots
			eventually(t, "the calls do not come", func() bool { return s.rpc.Stats().Active >= full })
			done := make(chan nfs3.AttrRes, 1)
			go func() { done <- client.getattr(root) }()
			select {
			case res := <-done:
				if res.Status != nfs3.OK {
					t.Error(res.Status)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("a call to another export waits for a medium that hangs")
			}
		})
	}
}

// What is left of a file whose medium hangs is not closed by the goroutine that reads a connection.
func TestTheReaderClosesNoFilesOfMediaThatHang(t *testing.T) {
	bad, err := os.MkdirTemp("/dev/shm", "sluice-hung")
	must(t, err)
	defer func() { must(t, os.RemoveAll(bad)) }()
	h := &hung{free: make(chan struct{})}
	s := start(t, "tcp", nfs.Options{Storage: h}, rpcserver.Options{}, nfs.Export{Path: "/b", Dir: bad, Rights: open, Async: true})
	defer close(h.free) // before the server is closed
	r := s.raw(t, 0, 0)
	top, _ := r.mount("/b")
	must(t, os.WriteFile(filepath.Join(bad, "f"), nil, 0o666))
	removed := r.lookup(top, "f").FH
	r.unstable(removed, 0, []byte("data"))
	h.hang(t, bad)
	must(t, os.Remove(filepath.Join(bad, "f")))
	done := make(chan nfs3.Status, 1)
	go func() { done <- r.getattr(removed).Status }()
	select {
	case st := <-done:
		if st != nfs3.ErrStale {
			t.Error(st)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the connection waits for a file to be closed that somebody has removed")
	}
}
