//go:build race

package e2e

// raceEnabled: under the race detector sync.Pool forgets a part of what it is given, so allocations mean nothing.
const raceEnabled = true
