// Package storm is what the random tools under test/ share: how long they run, from which seed, and where they count what they did.
// In "go test" each runs a short form from a constant seed; "make storm" (test/tool/storm) runs the long ones.
package storm

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"
)

// What the runner tells a tool.
const (
	EnvRounds = "SLUICE_STORM_ROUNDS"
	EnvSeed   = "SLUICE_STORM_SEED"
	EnvRun    = "SLUICE_STORM_RUN"
	EnvCounts = "SLUICE_STORM_COUNTS"
)

// Long reports that the runner runs the tool.
func Long() bool { return os.Getenv(EnvRounds) != "" }

// Rounds is how many rounds a tool runs: short ones in "go test".
func Rounds(t testing.TB, short int) int { return int(number(t, EnvRounds, uint64(short))) }

// Seed is where a tool's random choices begin; the gate's is constant, so that a run of it can be repeated.
func Seed(t testing.TB) uint64 { return number(t, EnvSeed, 13) }

// Share is which of n shares of all there is to be done a run does. Runs that follow one another do all of them in n; without a
// runner it is the seed's.
func Share(t testing.TB, n int) int { return int(number(t, EnvRun, Seed(t)) % uint64(n)) }

func number(t testing.TB, name string, or uint64) uint64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return or
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// Count adds to what the runner shows and adds up. A line is written at once: what a run that fails has done counts too.
func Count(t testing.TB, what string, n int) {
	t.Helper()
	path := os.Getenv(EnvCounts)
	if path == "" || n == 0 {
		return
	}
	line, err := json.Marshal(map[string]int{what: n})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}
