package drymemory

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/storm"
)

// All that clients do works while memory runs out: slower, never stuck, never wrong.
func TestStormDryMemory(t *testing.T) {
	first, effort := storm.Seed(t), 6
	if storm.Long() {
		effort = 12
	}
	for i := range storm.Rounds(t, 2) {
		seed := first + uint64(i)<<32
		rng := rand.New(rand.NewPCG(seed, 1))
		rate := []float64{0.02, 0.1, 0.3, 0.6, 0.9}[rng.IntN(5)]
		t.Run(fmt.Sprintf("seed=%d,rate=%v", seed, rate), func(t *testing.T) {
			newRound(t, seed, rate, effort).run(works, seed)
			storm.Count(t, "rounds", 1)
		})
	}
}
