//go:build race

package verbs

// raceEnabled: under the race detector sync.Pool forgets a part of what it is given, so allocations mean nothing.
const raceEnabled = true
