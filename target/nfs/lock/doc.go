// Package lock is the network lock manager version 4 and the part of the status monitor that goes with it (X/Open XNFS
// C702 chapters 11 and 14): byte-range locks with blocking waiters and callbacks, shares, recovery after a restart of
// either side. Who gets a lock is decided by target/filesystem/filelock; here are the codecs, the callbacks, and the list of clients.
//
// Locks live in memory, and the list of clients that hold some in the state directory. After a restart those clients
// are told by SM_NOTIFY and reclaim what they had; until the grace period ends no other client gets a lock.
//
//	m, err := lock.NewManager(lock.Options{StateDir: dir}, nfsd)
//	srv := rpcserver.NewServer(rpcserver.Options{}, append(nfsd.Programs(), m.Programs()...)...)
package lock
