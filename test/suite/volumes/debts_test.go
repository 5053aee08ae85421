package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
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
	note, text := d.lossOf(path)
	if err := os.WriteFile(note, text, 0o600); err != nil {
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
	if err := v.Flush(ctx); !errors.Is(err, blockdev.ErrMedium) && !errors.Is(err, block.ErrPowerLost) {
		t.Errorf("the first flush: %v", err)
	}
	if err := v.Flush(ctx); err != nil {
		t.Errorf("the second flush: %v", err)
	}
}

// lossOf is the note that tells of lost writes to a file that is not served, and what is in it.
func (d *daemon) lossOf(path string) (note string, text []byte) {
	d.t.Helper()
	dev, err := file.Open(path, file.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	id, err := dev.Identity()
	if err := errors.Join(err, dev.Close()); err != nil {
		d.t.Fatal(err)
	}
	return filepath.Join(d.state, "media", id+".loss"), []byte("a write failed\n" + id + "\n")
}

// A loss that is found while a volume is served is noted beside its medium, and who has to hear of it stands in the state of its unit. Each host that
// knew the volume hears, also where that is forgotten in between, as is done with one whose disk fails.
func TestAVolumeThatIsForgottenWithALossOwesItToEachHost(t *testing.T) {
	d := prepare(t, "  - {name: v, path: v.img}", "v")
	d.sparse("v.img", 1<<20)
	d.start()
	d.must("volume", "create", "x", "1MiB")
	d.must("target", "map", target, "7", "x")
	path := filepath.Join(d.state, "x.img")
	hosts := []string{"iqn.2026-11.io.sluice:a", "iqn.2026-11.io.sluice:b"}
	flushes := func(lun int, host string, times, fail int) {
		t.Helper()
		v, end := d.openAs(host, lun)
		defer end()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for k := range times {
			if err := v.Flush(ctx); k < fail && !errors.Is(err, blockdev.ErrMedium) && !errors.Is(err, block.ErrPowerLost) || k >= fail && err != nil {
				t.Errorf("flush %d of %s: %v", k+1, host, err)
			}
		}
	}
	for _, h := range hosts {
		flushes(7, h, 2, 0)
	}
	d.stop()
	note, text := d.lossOf(path)
	d.start()
	if err := os.WriteFile(note, text, 0o600); err != nil { // a writeback fails
		t.Fatal(err)
	}
	d.must("target", "unmap", target, "7")
	d.must("volume", "delete", "x")
	d.configure(fmt.Sprintf("  - {name: v, path: v.img}\n  - {name: y, path: %q}", path), "v", "y")
	d.must("reload")
	for _, h := range hosts {
		flushes(1, h, 2, 1)
	}
}
