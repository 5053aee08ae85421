package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/need"
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

// copyState copies what a daemon knows of its volumes to another state directory.
func copyState(d *Daemon, to string) error {
	var errs []error
	for _, dir := range []string{d.identityDir(), d.scsiState(), d.deletions()} {
		errs = append(errs, os.CopyFS(filepath.Join(to, filepath.Base(dir)), os.DirFS(dir)))
	}
	return errors.Join(errs...)
}

// A deletion that was killed while it removed the files is finished by the next start: the next volume of its name and path is another disk.
func TestADeletionThatWasKilledLeavesNothingToALaterVolume(t *testing.T) {
	d, file := running(t, fileConfig)
	path := filepath.Join(t.TempDir(), "extra.img")
	if _, err := d.CreateVolume(t.Context(), admin.VolumeSpec{Name: "extra", Size: 1 << 20, Path: path}); err != nil {
		t.Fatal(err)
	}
	key := d.volumes["extra"].key
	id, err := os.ReadFile(beside(path))
	if err != nil {
		t.Fatal(err)
	}
	killed := filepath.Join(t.TempDir(), "state") // as the kill leaves it
	defer func() { removeFile = os.Remove }()
	removeFile = func(f string) error {
		err := os.Remove(f)
		if f == path {
			err = errors.Join(err, copyState(d, killed))
		}
		return err
	}
	if _, err := d.DeleteVolume(t.Context(), "extra", true, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(d.deletionPath("extra")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the deletion is over: %v", err)
	}
	file = filepath.Join(filepath.Dir(file), "other.yaml")
	conf := []byte("state_dir: \"" + killed + "\"\nportals: [{address: \"127.0.0.1:0\"}]\nvolumes: []\n")
	if err := errors.Join(os.WriteFile(beside(path), id, 0o600), os.WriteFile(file, conf, 0o600)); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	stop()
	for _, f := range []string{beside(path), d.recordPath("extra"), d.deletionPath("extra"), filepath.Join(d.scsiState(), scsi.StateFile(key))} {
		if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", filepath.Base(f), err)
		}
	}
}

// A deletion that was killed before it removed the file has forgotten the volume only.
func TestADeletionThatWasKilledBeforeItBeganKeepsTheDisk(t *testing.T) {
	d, file := running(t, fileConfig)
	name := ""
	for n, v := range d.volumes {
		if v.cfg.Engine == "file" {
			name = n
		}
	}
	v := d.volumes[name]
	killed := filepath.Join(t.TempDir(), "state")
	if err := errors.Join(d.noteDeletion(name, []string{v.cfg.Path, beside(v.cfg.Path)}), copyState(d, killed)); err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(filepath.Dir(file), "other.yaml")
	if err := os.WriteFile(file, []byte("state_dir: \""+killed+"\"\nportals: [{address: \"127.0.0.1:0\"}]\nvolumes: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	stop()
	for _, f := range []string{beside(v.cfg.Path), d.recordPath(name), filepath.Join(d.scsiState(), scsi.StateFile(v.key))} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(d.deletionPath(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is tried again by each start: %v", err)
	}
}
