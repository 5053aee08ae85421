package nfs

import (
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/transport/transporttest"
)

// A restriction that a URL asks for is kept or refused: a device that is there already exposes what it was opened with.
func TestAnExposureThatCannotBeChosenIsRefused(t *testing.T) {
	dev := transporttest.NewNetwork().Adapter(transporttest.Adapter{WholeSlab: true})
	defer func() { _ = dev.Close() }()
	_, _, err := Mount(t.Context(), "nfs+rdma://127.0.0.1/data?exposure=windows", Options{Device: dev})
	if !errors.Is(err, ErrExposure) {
		t.Errorf("an exposure that cannot be chosen: %v", err)
	}
}
