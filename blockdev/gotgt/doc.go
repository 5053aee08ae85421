// Package gotgt is the bridge to gotgt, both ways: Open serves any gotgt backing store as a blockdev.Device, and
// Register lets a gotgt target stand on any blockdev.Device.
//
// No other package imports gotgt: its registries and its logger are package globals. Importing it makes gotgt look for
// a home directory at start, with `getent` and `sh` where $HOME is empty; set HOME, to anything, for a service.
package gotgt

const (
	// workers bound the calls into a backing store, each of which blocks a thread.
	workers = 8

	// pieceSize is how much one call moves: gotgt allocates a buffer for each read.
	pieceSize = 1 << 20

	// poolSize bounds the memory between gotgt's buffers and a device's: gotgt runs one command a connection.
	poolSize = 64 << 20

	// maxCompareWrite bounds what a compare-and-write holds in memory.
	maxCompareWrite = 1 << 20
)
