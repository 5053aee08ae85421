package nfs_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// disk is a file system on a loop device. Its store can be filled up: what the kernel writes back to new places then is
// lost, and the kernel tells of it as of a disk that is broken.
type disk struct {
	t     *testing.T
	dir   string // where it is mounted
	store string // a tmpfs
	image string
}

// newDisk makes a file system with the program mkfs and its arguments.
func newDisk(t *testing.T, mkfs string, args ...string) *disk {
	t.Helper()
	need.Root(t)
	need.Mount(t)
	need.Device(t, "/dev/loop-control")
	pkg := map[string]string{"mkfs.ext4": "e2fsprogs", "mkfs.xfs": "xfsprogs"}[mkfs]
	tool := need.Tool(t, mkfs, pkg)
	d := &disk{t: t, dir: t.TempDir(), store: t.TempDir()}
	d.image = filepath.Join(d.store, "image")
	room := "size=48m"
	if mkfs == "mkfs.xfs" {
		room = "size=200m" // its log is written out
	}
	must(t, unix.Mount("tmpfs", d.store, "tmpfs", 0, room))
	t.Cleanup(func() {
		// The kernel lets go of the image after the loop device's last user, which may be a copy of the disk's mount in another
		// test's mount namespace: it is not waited for.
		must(t, unix.Unmount(d.store, unix.MNT_DETACH))
	})
	f, err := os.Create(d.image)
	must(t, err)
	must(t, f.Truncate(320<<20))
	must(t, f.Close())
	d.run(tool, append(args, d.image)...)
	d.mount()
	t.Cleanup(d.umount)
	return d
}

func (d *disk) run(name string, args ...string) {
	d.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		d.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func (d *disk) mount()  { d.t.Helper(); d.run("mount", "-o", "loop", d.image, d.dir) }
func (d *disk) umount() { d.t.Helper(); d.run("umount", d.dir) }

// powerCut returns where what would be left of the file system is mounted, had the power failed now: what the kernel has
// not written is not in the image.
func (d *disk) powerCut() string {
	d.t.Helper()
	image, dir := filepath.Join(d.t.TempDir(), "image"), d.t.TempDir()
	d.run("cp", "--sparse=always", d.image, image)
	d.run("mount", "-o", "loop", image, dir)
	d.t.Cleanup(func() { d.run("umount", dir) })
	return dir
}

// newLossyDisk makes one without a journal, which would stop at the first loss.
func newLossyDisk(t *testing.T) *disk {
	return newDisk(t, "mkfs.ext4", "-F", "-q", "-b", "4096", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard")
}

// fill makes everything that is written back to new places be lost, until drain.
func (d *disk) fill() {
	d.t.Helper()
	unix.Sync() // what is there stays
	f, err := os.Create(filepath.Join(d.store, "filler"))
	must(d.t, err)
	_, err = io.Copy(f, zeroes{})
	if err == nil {
		d.t.Fatal("the store of the disk cannot be filled")
	}
	must(d.t, f.Close())
}

func (d *disk) drain() { d.t.Helper(); must(d.t, os.Remove(filepath.Join(d.store, "filler"))) }

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { return len(p), nil }

// writeBack has the kernel write a file back, and tells no one of the outcome but the caller.
func writeBack(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer func() { _ = f.Close() }()
	must(t, unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE))
	// sync_file_range(2) would take the error where it waits, and the kernel then counts it as told.
	for limit := time.Now().Add(patience); ; runtime.Gosched() {
		var c unix.Cachestat_t
		must(t, unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &c, 0))
		if c.Dirty+c.Writeback == 0 {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("the kernel does not write a file back")
		}
	}
}
