package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/initiator/block"
)

// A volume that is forgotten and keeps its file is the same disk when that is configured again, so its hosts are still owed what it
// lost: a flush that fails, once.
func TestAVolumeThatIsForgottenWithoutItsDataOwesItsLosses(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	d.must("volume", "create", "x", "1MiB")
	d.must("target", "map", target, "7", "x")
	was := d.identity(7)
	d.stop()
	path := filepath.Join(d.state, "x.img")
	dev, err := file.Open(path, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := dev.Identity()
	if err := errors.Join(err, dev.Close()); err != nil {
		t.Fatal(err)
	}
	note := filepath.Join(d.state, "media", id+".loss")
	if err := os.WriteFile(note, []byte("a write failed\n"+id+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start() // the unit's state has the debt now
	if _, err := os.Stat(note); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the medium's note: %v", err)
	}
	d.must("target", "unmap", target, "7")
	d.must("volume", "delete", "x")
	d.configure(fmt.Sprintf("  - {name: v, path: v.img}\n  - {name: y, path: %q}", path), "v", "y")
	d.must("reload")
	if now := d.identity(1); now != was {
		t.Fatalf("another disk:\n%s\nbefore:\n%s", now, was)
	}
	v, end := d.open(1)
	defer end()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := v.Flush(ctx); !errors.Is(err, block.ErrMedium) && !errors.Is(err, block.ErrPowerLost) {
		t.Errorf("the first flush: %v", err)
	}
	if err := v.Flush(ctx); err != nil {
		t.Errorf("the second flush: %v", err)
	}
}
