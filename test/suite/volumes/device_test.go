package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/disk"
)

// A block device is one disk under every name and path that it is configured with, and another device at its path another.
func TestABlockDeviceIsOneDiskByEveryNameAndPath(t *testing.T) {
	one, _ := disk.Loop(t, 1<<20)
	two, _ := disk.Loop(t, 1<<20)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(one, link); err != nil {
		t.Fatal(err)
	}
	d := prepare(t, "  - {name: v, path: "+link+"}", "v")
	d.start()
	id := d.identity(0)
	d.refused("block device", "volume", "resize", "v", "2MiB")
	d.stop()
	d.configure("  - {name: w, path: "+one+"}", "w")
	d.start()
	if got := d.identity(0); got != id {
		t.Errorf("by another name and path it is\n%s\nbefore\n%s", got, id)
	}
	d.stop()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(two, link); err != nil {
		t.Fatal(err)
	}
	d.configure("  - {name: v, path: "+link+"}", "v")
	d.start()
	if d.identity(0) == id {
		t.Error("another device is the same disk")
	}
	if _, err := os.Stat(two + ".identity"); err == nil {
		t.Errorf("something lies in /dev beside %s", two)
	}
}

// A block device that was away when this version started first is the disk that an earlier version made of its volume's name, and no other
// device at its path is.
func TestAnEarlierBlockDeviceThatWasAwayKeepsItsIdentity(t *testing.T) {
	one, _ := disk.Loop(t, 1<<20)
	two, _ := disk.Loop(t, 1<<20)
	link := filepath.Join(t.TempDir(), "link")
	d := prepare(t, "  - {name: disk, path: "+link+"}", "disk")
	d.earlier()
	d.start()
	d.stop()
	if err := os.Symlink(one, link); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		d.start()
		if id := d.identity(0); !strings.Contains(id, earlierDisk) {
			t.Errorf("the identity is\n%s\nwant %s", id, earlierDisk)
		}
		d.stop()
	}
	if err := errors.Join(os.Remove(link), os.Symlink(two, link)); err != nil {
		t.Fatal(err)
	}
	d.start()
	if id := d.identity(0); strings.Contains(id, earlierDisk) {
		t.Errorf("another device is the same disk:\n%s", id)
	}
}
