package mem_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/mem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t testing.TB, o mem.Options) blockdev.Device {
	t.Helper()
	d, err := mem.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	for name, o := range map[string]mem.Options{
		"512":  {Size: 3<<20 + 512},
		"4096": {Size: 4 << 20, Logical: 4096, Physical: 16384},
	} {
		t.Run(name, func(t *testing.T) {
			blockdevtest.Run(t, blockdevtest.Options{
				Open: func(t testing.TB) blockdev.Device { return open(t, o) },
				ReadOnly: func(t testing.TB) blockdev.Device {
					o := o
					o.ReadOnly = true
					return open(t, o)
				},
				Resize: func(t testing.TB, d blockdev.Device, size int64) {
					if err := d.(*mem.Device).Resize(size); err != nil {
						t.Fatal(err)
					}
				},
				Cheap: true,
			})
		})
	}
}

func TestOpenRefusesNonsense(t *testing.T) {
	for _, o := range []mem.Options{{}, {Size: -512}, {Size: 513}, {Size: 512, Logical: 4096}, {Size: 1 << 50}} {
		if _, err := mem.Open(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
