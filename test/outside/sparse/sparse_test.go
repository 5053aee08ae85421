package sparse_test

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"sluice.example/outside/sparse"
)

// An engine that was written elsewhere is tried with the same rules as those that come with Sluice.
func TestTheEngineKeepsTheContract(t *testing.T) {
	blockdevtest.Run(t, blockdevtest.Options{Open: func(testing.TB) blockdev.Device { return sparse.New(8 << 20) }})
}
