package fabric

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// A URL's words go before the set's own; each pair of words has one device; an exposure is of adapters alone.
func TestASetMakesOneDeviceForEachProviderAndExposure(t *testing.T) {
	var asked []string
	net := transporttest.NewNetwork()
	defer Replace(Verbs, func(o Options) (transport.Device, error) {
		asked = append(asked, o.Exposure)
		return net.Adapter(transporttest.Adapter{Provider: Verbs, WholeSlab: o.Exposure == WholeSlab}), nil
	})()
	var said []string
	s := &Set{Options: Options{Exposure: "windows"}, Say: func(l string) { said = append(said, l) }}
	get := func(provider, exposure string) transport.Device {
		d, err := s.Device(provider, exposure)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	soft := get("", "")
	if soft.Name() != IWARP || get("iwarp", "") != soft {
		t.Errorf("without a word: %s", soft.Name())
	}
	plain, whole := get(Verbs, ""), get(Verbs, WholeSlab)
	if plain == whole || get(Verbs, "windows") != plain || get(Verbs, WholeSlab) != whole || strings.Join(asked, " ") != "windows whole-slab" {
		t.Errorf("asked for %v", asked)
	}
	if len(said) != 1 || !strings.Contains(said[0], "twin0") || !strings.Contains(said[0], WholeSlab) {
		t.Errorf("said %q", said)
	}
	var word *WordError
	if _, err := s.Device(IWARP, WholeSlab); !errors.As(err, &word) || !strings.Contains(err.Error(), Verbs) {
		t.Errorf("whole slabs over software iWARP: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	mine := &Set{Default: IWARP, Options: Options{Exposure: WholeSlab}} // for what a URL may name
	if _, err := mine.Device("", ""); err != nil {
		t.Error(err)
	}
	if err := mine.Close(); err != nil {
		t.Error(err)
	}
}
