package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

// What is known of a medium is known under whatever name it is served.
func TestAVolumeThatIsRenamedHasNotForgottenItsLoss(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluiced.yaml")
	if err := os.WriteFile(file, []byte(fileConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop := serve(t, file)
	id, err := blockdev.Identity(d.volumes["disk"].dev)
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if err := os.WriteFile(filepath.Join(d.stateDir, "disk.loss"), []byte("the disk is broken\n"+id+"\n"), 0o600); err != nil { // as earlier versions did
		t.Fatal(err)
	}
	conf := strings.Replace(fileConfig, "{name: disk,", "{name: drive, path: state/disk.img,", 1)
	conf = strings.Replace(conf, "volume: disk", "volume: drive", 1)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	d, stop = serve(t, file)
	defer stop()
	if err := blockdev.Lost(d.volumes["drive"].dev); err == nil {
		t.Error("the volume has lost writes, and does not know")
	}
}
