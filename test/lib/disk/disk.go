// Package disk makes block devices and file systems for the length of a test: loop devices that go with the process
// whatever ends it, and file systems on them.
package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// tries is how often a loop device is asked for: others take them too.
const tries = 100

// Loop is a block device of size bytes on a sparse file, whose path is returned too. It skips where there are none.
func Loop(t testing.TB, size int64) (device, backing string) {
	t.Helper()
	need.Root(t)
	need.Device(t, "/dev/loop-control")
	backing = filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(backing)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	dev, err := attach(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() }) // which frees it, once nothing else has it open: LO_FLAGS_AUTOCLEAR
	return dev.Name(), backing
}

func attach(f *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range tries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("a free loop device: %w", err)
		}
		dev, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &unix.LoopConfig{Fd: uint32(f.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}})
		if err == nil {
			return dev, nil
		}
		if err = errors.Join(err, dev.Close()); !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("%s: %w", dev.Name(), err)
		}
	}
	return nil, unix.EBUSY
}

// Mount is a directory on a new file system of size bytes, of a kind that the kernel has: "xfs", "ext4". Options are for
// its mkfs.
func Mount(t testing.TB, kind string, size int64, options ...string) string {
	t.Helper()
	mkfs := need.Tool(t, "mkfs."+kind, map[string]string{"xfs": "xfsprogs", "ext4": "e2fsprogs"}[kind])
	dev, _ := Loop(t, size)
	if out, err := exec.Command(mkfs, append(options, "-q", dev)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", mkfs, err, out)
	}
	dir := t.TempDir()
	switch err := unix.Mount(dev, dir, kind, unix.MS_NODEV|unix.MS_NOSUID, ""); {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPERM):
		t.Skipf("needs a kernel that mounts %s: %v", kind, err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	return dir
}
