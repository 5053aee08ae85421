//go:build race

package iscsi

// raceEnabled says that the race detector drops pooled memory at random and slows everything down.
const raceEnabled = true
