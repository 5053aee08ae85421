// Package filelock is the locks of files whatever protocol and version their clients speak: byte ranges with requests that wait, share reservations,
// and the time of grace. A file is known by its filesystem.FileKey, so that all that speak of the same file share its locks.
//
// Table decides, in words of its own (Verdict): who gets a range, who waits, who is next. It knows no call and no status. What speaks a protocol, as
// target/nfs/lock does, turns its arguments into a Lock, the Verdict into its status, and tells a client that has waited of its lock (Waiter).
//
//	v := table.Lock(filelock.File{Key: key, Handle: handle}, filelock.Lock{Owner: owner, Range: filelock.RangeOf(0, 10), Exclusive: true}, filelock.Ask{})
//
// Locks live in memory. Which clients have to be told of a restart is for the protocol to remember: it begins grace, and ends it.
package filelock
