package filesystem

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const patience = time.Minute

// local is a caller's connection within this process.
type local struct{ conn, host atomic.Pointer[any] }

func (*local) Host() netip.Addr                 { return netip.AddrFrom4([4]byte{192, 0, 2, 1}) }
func (*local) Privileged() bool                 { return true }
func (*local) Trust()                           {}
func (*local) Slots() int                       { return 8 }
func (p *local) Memo() *atomic.Pointer[any]     { return &p.conn }
func (p *local) HostMemo() *atomic.Pointer[any] { return &p.host }

// Directories of two subvolumes of btrfs may have one inode number, and that of a removed directory may be a new one's: RENAMEs between two such
// directories, there and back at one time, do not wait for one another.
func TestRenamesBetweenDirectoriesOfOneNumberEnd(t *testing.T) {
	for name, ids := range map[string][2]fileID{"two subvolumes": {{1, 256}, {2, 256}}, "one removed": {{1, 256}, {1, 256}}} {
		t.Run(name, func(t *testing.T) {
			s, err := New(Options{}, Export{Path: "/a", Dir: t.TempDir(), Async: true, Rights: Rights{Squash: SquashNone}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			caller := Caller{Peer: &local{}, MayWait: true, Cred: Credential{Known: true}}
			root, e := s.Mount(&caller, "/a")
			if e != OK {
				t.Fatal(e)
			}
			var dirs [2]Object
			var files [2]*file
			for i := range dirs {
				if e := s.FindDir(&caller, root, &dirs[i], true); e != OK {
					t.Fatal(e)
				}
				defer func() { dirs[i].End() }()
				if files[i] = s.files.get(ids[i]); i == 0 && ids[0] == ids[1] {
					files[0].forget()
				}
				// The node of the export's root, as it would be with another file.
				root := dirs[i].n
				dirs[i].n = &node{e: root.e, fd: root.fd, ino: root.ino, fmt: root.fmt, file: files[i]}
				defer func() { dirs[i].n = root; s.files.put(files[i]) }()
			}
			var wg sync.WaitGroup
			for i := range dirs {
				wg.Go(func() {
					for range 5000 {
						var a, b Change
						if e := dirs[i].Rename([]byte("none"), &dirs[1-i], []byte("none"), &a, &b); e != Errno(unix.ENOENT) {
							t.Errorf("%v", e)
							return
						}
					}
				})
			}
			done := make(chan struct{})
			go func() { wg.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(patience):
				t.Fatal("two RENAMEs wait for one another")
			}
		})
	}
}
