package block_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/blocktarget"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

const (
	diskSize = 4 << 20
	patience = 2 * time.Minute
)

// target serves a disk in memory until the test's end.
func target(t testing.TB, o blocktarget.Options) *blocktarget.Target {
	t.Helper()
	disk, err := bmem.Open(bmem.Options{Size: diskSize})
	if err != nil {
		t.Fatal(err)
	}
	s, err := blocktarget.Start(disk, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), disk.Close()); err != nil {
			t.Error(err)
		}
	})
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
			device := func(o blocktarget.Options) func(t testing.TB) blockdev.Device {
				return func(t testing.TB) blockdev.Device {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					v, err := block.Open(ctx, target(t, o).URL(scheme), block.Options{Device: rnic})
					if err != nil {
						t.Fatal(err)
					}
					return v
				}
			}
			blockdevtest.Run(t, blockdevtest.Options{Open: device(blocktarget.Options{}), ReadOnly: device(blocktarget.Options{ReadOnly: true}), Registrar: rnic})
		})
	}
}
