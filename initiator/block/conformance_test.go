package block_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

const (
	diskSize = 4 << 20
	patience = 2 * time.Minute
)

// target serves a disk in memory until the test's end.
func target(t testing.TB, o stand.BlockOptions) *stand.Blocks {
	t.Helper()
	return serve(t, o, scsi.LUOptions{Device: stand.Disk(t, diskSize), Name: "disk"})
}

func serve(t stand.T, o stand.BlockOptions, unit scsi.LUOptions) *stand.Blocks {
	t.Helper()
	o.Server.Device, o.Memory = iwarp.New(iwarp.Options{}), 128<<20
	s := stand.NewBlocks(t, o, unit)
	s.Portal("127.0.0.1", 1)
	return s
}

// open opens the volume of a target until the test's end.
func open(t testing.TB, url string, o block.Options) *block.Volume {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	v, err := block.Open(ctx, url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil && !errors.Is(err, blockdev.ErrClosed) {
			t.Error(err)
		}
	})
	return v
}

// A volume that is reached over a fabric keeps the rules of one that is here.
func TestAVolumeIsABlockDevice(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			rnic := iwarp.New(iwarp.Options{})
			t.Cleanup(func() {
				if err := rnic.Close(); err != nil {
					t.Error(err)
				}
			})
			device := func(readOnly bool) func(t testing.TB) blockdev.Device {
				return func(t testing.TB) blockdev.Device {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					s := serve(t, stand.BlockOptions{}, scsi.LUOptions{Device: stand.Disk(t, diskSize), Name: "disk", ReadOnly: readOnly})
					v, err := block.Open(ctx, s.URL(scheme), block.Options{Device: rnic})
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
			}
			blockdevtest.Run(t, blockdevtest.Options{Open: device(false), ReadOnly: device(true), Registrar: rnic})
		})
	}
}
