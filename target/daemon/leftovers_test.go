package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/savefile"
)

// What a daemon that was killed has not finished, or not cleared away, is gone after the next start: the old secrets among it.
func TestAStartSweepsWhatAKillLeft(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	stop()
	if err := os.MkdirAll(filepath.Join(d.stateDir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	left := func() map[string]bool {
		t.Helper()
		all := map[string]bool{}
		err := filepath.WalkDir(d.stateDir, func(path string, _ os.DirEntry, err error) error {
			all[path] = true
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := left()
	for _, of := range []string{
		managedPath(d.stateDir), d.secretsOf("iqn.2026-11.io.sluice:gone"), d.recordPath("disk"), d.allIdentified(),
		filepath.Join(d.identityDir(), "device-naa.5000c500a1b2c3d4"), beside(defaultPath(d.stateDir, "disk")), beside(defaultPath(d.stateDir, "never-made")),
	} {
		if _, err := savefile.Prepare(of, []byte("begun\n")); err != nil { // and no Put and no Drop
			t.Fatal(err)
		}
	}
	mine := filepath.Join(d.stateDir, ".notes-1") // is none of the daemon's
	if err := os.WriteFile(mine, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	for path := range left() {
		if !before[path] {
			if err := os.Chtimes(path, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, stop = serve(t, file)
	defer stop()
	for path := range left() {
		if !before[path] && path != mine && filepath.Base(path)[0] == '.' {
			t.Errorf("%s is still there", path)
		}
	}
	if _, err := os.Stat(mine); errors.Is(err, os.ErrNotExist) {
		t.Error("a file of somebody else is gone")
	}
}
