package null_test

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/null"
)

func TestConformance(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Options{
		Open: func(t testing.TB) blockdev.Device {
			d, err := null.Open(null.Options{Size: 4 << 20})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Forgets: true,
		Cheap:   true,
	})
}

func TestOpenRefusesNonsense(t *testing.T) {
	for _, o := range []null.Options{{}, {Size: 513}, {Size: 512, Logical: 4096}} {
		if _, err := null.Open(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
}
