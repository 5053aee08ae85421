package stat_test

import (
	"math"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/stat"
)

func TestTheIntervalIsStudents(t *testing.T) {
	// Logarithms -0.1, 0 and 0.1: mean 0, deviation 0.1, so 4.303 * 0.1 / sqrt(3) to each side.
	m, low, high := stat.Interval([]float64{-0.1, 0, 0.1})
	if d := 4.303 * 0.1 / math.Sqrt(3); math.Abs(m-1) > 1e-9 || math.Abs(math.Log(high)-d) > 1e-9 || math.Abs(math.Log(low)+d) > 1e-9 {
		t.Errorf("%v, %v to %v", m, low, high)
	}
	if _, low, high := stat.Interval([]float64{0.3}); low != 0 || !math.IsInf(high, 1) {
		t.Errorf("one round has an interval: %v to %v", low, high)
	}
}
