package block

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/transport/transporttest"
)

// A restriction that a URL asks for is kept or refused: a device that is there already exposes what it was opened with.
func TestAnExposureThatCannotBeChosenIsRefused(t *testing.T) {
	dev := transporttest.NewNetwork().Adapter(transporttest.Adapter{WholeSlab: true})
	defer func() { _ = dev.Close() }()
	i := &Initiator{o: Options{Device: dev}}
	for _, word := range []string{"windows", "whole-slab"} {
		var bad *URLError
		if _, err := i.device(&URL{ISER: true, Exposure: word}); !errors.As(err, &bad) || !strings.Contains(err.Error(), "exposure="+word) {
			t.Errorf("%s: %v", word, err)
		}
	}
	if d, err := i.device(&URL{ISER: true}); err != nil || d != dev {
		t.Errorf("without a word: %v", err)
	}
}
