package e2e

import (
	"bytes"
	"context"
	"os"
	"syscall"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/disk"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// UNMAP gives a block device's space back, and promises no zeroes where the device promises none; WRITE SAME of zeroes
// with UNMAP still makes zeroes.
func TestUnmapOnABlockDeviceDiscards(t *testing.T) {
	dev, backing := disk.Loop(t, diskSize)
	s := newStand(t, iwarp.Options{}, func(below blockdev.Device) blockdev.Device {
		must(t, below.Close())
		d, err := file.Open(dev, file.Options{})
		must(t, err)
		return d
	})
	v := open(t, host(t, block.Options{}, iwarp.Options{}), url("iser", s.Portal("127.0.0.1", 1)))
	if g := v.Unit(); g.DiscardZeroes || g.MaxUnmap == 0 {
		t.Fatalf("%+v", g)
	}
	ctx := context.Background()
	taken := func() int64 {
		must(t, v.Flush(ctx))
		fi, err := os.Stat(backing)
		must(t, err)
		return fi.Sys().(*syscall.Stat_t).Blocks
	}
	want := bytes.Repeat([]byte{7}, diskSize)
	_, err := v.WriteAt(want, 0)
	must(t, err)
	full := taken()
	must(t, v.Discard(ctx, 1<<20, 2<<20))
	if left := taken(); left > full*3/4 {
		t.Errorf("%d sectors before UNMAP, %d after", full, left)
	}
	must(t, v.WriteZeroes(ctx, 0, 4096, true))
	got := make([]byte, 8192)
	_, err = v.ReadAt(got, 0)
	must(t, err)
	if !bytes.Equal(got[:4096], make([]byte, 4096)) || got[4096] != 7 {
		t.Errorf("after WRITE SAME with UNMAP: %d, %d", got[0], got[4096])
	}
}
