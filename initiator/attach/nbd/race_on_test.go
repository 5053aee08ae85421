//go:build race

package nbd

// raceEnabled: the race detector allocates on its own account.
const raceEnabled = true
