package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/need"
)

// A file that cannot be deleted is the volume's still, and the disk that it was when it is configured again: with who was fenced.
func TestAVolumeWhoseFileCannotBeDeletedKeepsItsState(t *testing.T) {
	need.Mount(t)
	d, _ := running(t, fileConfig)
	ctx := t.Context()
	if _, err := d.CreateVolume(ctx, admin.VolumeSpec{Name: "extra", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	path, state := defaultPath(d.stateDir, "extra"), filepath.Join(d.scsiState(), scsi.StateFile(d.volumes["extra"].key))
	if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	if _, err := d.DeleteVolume(ctx, "extra", true, false); err == nil || !strings.Contains(err.Error(), "could not be deleted") {
		t.Fatalf("the file is a mount point: %v", err)
	}
	if _, err := os.Stat(state); err != nil {
		t.Error(err)
	}
}
