package daemon

import (
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

func TestLimitsOfAVolumeAreInForce(t *testing.T) {
	for want, l := range map[string]*LimitsConfig{
		"memory":                               nil,
		"memory, inline":                       {},
		"limited to 500 requests/s, memory":    {IOPS: 500},
		"limited to 1048576 bytes/s, memory":   {Bandwidth: 1 << 20},
		"limited to 7 requests/s to 9 bytes/s": {IOPS: 7, Bandwidth: 9},
	} {
		dev, err := engineNamed("mem").open(VolumeConfig{Name: "v", Engine: "mem", Size: 1 << 20}, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if dev, err = limited(dev, l); err != nil {
			t.Fatal(err)
		}
		if got := blockdev.Path(dev); !strings.HasPrefix(got, want) {
			t.Errorf("%+v: %q, expected %q", l, got, want)
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
	dev, err := engineNamed("mem").open(VolumeConfig{Name: "v", Engine: "mem", Size: 1 << 20}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := limited(dev, &LimitsConfig{IOPS: -1}); err == nil {
		t.Error("a negative limit was taken")
	}
}
