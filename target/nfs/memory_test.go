package nfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// stepping is storage without reads that do not wait, as tmpfs is. It stops in each read and write.
type stepping struct {
	forgetful
	in, on chan struct{}
}

func (s *stepping) Pread(fd int, bufs [][]byte, n int, off int64, nowait bool) (int, error) {
	if nowait {
		return 0, unix.EOPNOTSUPP
	}
	s.in <- struct{}{}
	<-s.on
	return s.forgetful.Pread(fd, bufs, n, off, nowait)
}

func (s *stepping) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	s.in <- struct{}{}
	<-s.on
	return s.forgetful.Pwrite(fd, bufs, n, off, sync)
}

// READs and WRITEs of a file system that is nothing but memory hardly ever block: the owner of an RDMA connection executes them, also
// without data in chunks, and wakes no worker for each.
func TestFilesInMemoryAreServedByTheOwnerOfTheConnection(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "sluice-memory")
	must(t, err)
	defer func() { must(t, os.RemoveAll(dir)) }()
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("what was there"), 0o666))
	disk := &stepping{in: make(chan struct{}), on: make(chan struct{})}
	s := start(t, "iwarp", nfs.Options{Storage: disk}, rpcserver.Options{}, nfs.Export{Dir: dir, Rights: open})
	r := s.rdma(t)
	root, _ := r.mount("/data")
	fh := r.lookup(root, "f").FH
	eventually(t, "no worker is in a call", func() bool { st := s.rpc.Stats(); return st.Workers == st.Idle }) // it ends behind its answer
	for name, call := range map[string]func() []byte{
		"READ": func() []byte {
			_, data := r.read(&nfs3.RangeArgs{FH: fh, Count: 14})
			return data
		},
		"WRITE": func() []byte {
			if w := r.write(fh, 0, []byte("what was there"), nfs3.FileSync); w.Status != nfs3.OK || w.Count != 14 {
				t.Errorf("WRITE: %v, %d bytes", w.Status, w.Count)
			}
			return []byte("what was there")
		},
	} {
		t.Run(name, func(t *testing.T) {
			for i := range 4 {
				answer := make(chan []byte)
				go func() { answer <- call() }()
				<-disk.in
				st := s.rpc.Stats()
				disk.on <- struct{}{}
				if got := <-answer; !bytes.Equal(got, []byte("what was there")) {
					t.Errorf("%q", got)
				}
				if busy := st.Workers - st.Idle; busy != 0 && i > 0 { // one opens the file
					t.Errorf("%d workers are in a %s", busy, name)
				}
			}
		})
	}
}
