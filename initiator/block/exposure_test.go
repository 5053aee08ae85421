package block

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/fabric"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// Who opens a volume by a URL that exposes whole slabs is told what that means.
func TestAnExposureOfWholeSlabsIsLogged(t *testing.T) {
	defer fabric.Replace(fabric.Verbs, func(fabric.Options) (transport.Device, error) {
		return transporttest.NewNetwork().Adapter(transporttest.Adapter{Provider: fabric.Verbs, WholeSlab: true}), nil
	})()
	var log strings.Builder
	_, err := Open(t.Context(), "iser://192.0.2.1/iqn.2026-01.org.example:none/0?provider=verbs&exposure=whole-slab", Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if !errors.Is(err, ErrNoPath) {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "level=WARN") || !strings.Contains(log.String(), fabric.WholeSlab) {
		t.Errorf("the log is %q", log.String())
	}
}

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
