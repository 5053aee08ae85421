package nfs_test

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// hungWrites is storage that does not come back from writing to some devices.
type hungWrites struct {
	forgetful
	devs sync.Map
	free chan struct{}
}

func (h *hungWrites) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, err
	}
	if _, hangs := h.devs.Load(st.Dev); hangs {
		<-h.free
	}
	return n, nil
}

// Media that hang do not take all the memory that a host gets for its requests, over however many connections it writes to them.
func TestMediaThatHangLeaveRoomToTheirHost(t *testing.T) {
	need.Root(t)
	h := &hungWrites{free: make(chan struct{})}
	s := start(t, "tcp", nfs.Options{Storage: h}, rpcserver.Options{}, nfs.Export{Path: "/data", Rights: open})
	exports := []nfs.Export{{Path: "/data", Dir: s.dir, Rights: open}}
	for _, path := range []string{"/a", "/b", "/c"} {
		dir := t.TempDir()
		must(t, unix.Mount("sluice-hung", dir, "tmpfs", 0, ""))
		defer func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) }()
		var st unix.Stat_t
		must(t, unix.Stat(dir, &st))
		h.devs.Store(st.Dev, true)
		exports = append(exports, nfs.Export{Path: path, Dir: dir, Rights: open})
	}
	must(t, s.nfs.SetExports(exports...))
	release := sync.OnceFunc(func() { close(h.free) })
	defer release() // before the server is closed
	var files [][]byte
	r := s.raw(t, 0, 0)
	for _, e := range exports {
		must(t, os.WriteFile(filepath.Join(e.Dir, "f"), nil, 0o666))
		root, _ := r.mount(e.Path)
		files = append(files, r.lookup(root, "f").FH)
	}
	const conns, each, length = 4, 90, 1 << 20
	write := func(fh []byte) []byte {
		a := nfs3.WriteArgs{FH: fh, Count: length, Stable: nfs3.FileSync, Len: length}
		return append(a.Append(nil), make([]byte, length)...)
	}
	known := func() *wire {
		w := s.wire(t)
		a := nfs3.FHArgs{FH: files[0]}
		w.send(2, nfs3.ProcGetattr, a.Append(nil)) // it shows its right
		must(t, w.answer())
		return w
	}
	var answers atomic.Int32
	var ended sync.WaitGroup
	var wires []*wire
	for k := range conns {
		w := known()
		wires = append(wires, w)
		ended.Go(func() { // the server may stop to read
			for i := range each {
				if w.put(uint32(1000*(k+1)+i), nfs3.ProcWrite, write(files[1+i%3])) != nil {
					return
				}
			}
		})
		ended.Go(func() {
			for w.answer() == nil {
				answers.Add(1)
			}
		})
	}
	eventually(t, "the rest of the calls is asked for later", func() bool {
		n := answers.Load()
		return int(n)+s.rpc.Stats().Active == conns*each && n >= conns*each-200 // fewer than the room is for
	})
	w := known()
	must(t, w.SetDeadline(time.Now().Add(patience)))
	w.send(3, nfs3.ProcWrite, write(files[0]))
	if err := w.answer(); err != nil {
		t.Errorf("a WRITE to another export: %v", err)
	}
	release()
	eventually(t, "the calls are not answered when the media are back", func() bool { return answers.Load() == conns*each })
	for _, w := range wires {
		_ = w.Close()
	}
	ended.Wait()
}
