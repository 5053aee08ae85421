// Package rbd is a block device on an image of Ceph's RADOS Block Device (RBD), by librbd.
//
// Reads, writes, flushes, discards and zeroes are started in batches and end in batches (internal/ceph, Ring); their memory goes to librbd as
// it is. What blocks is a worker's: a compare-and-write, which reads, compares and writes under a lock of its range, so that it is atomic over
// any range, also across the borders of objects, for all that goes through this device; the question what is there (Status); and requests in
// very many pieces.
//
// # What is durable
//
// Without librbd's cache a write that completed is on the disks of all OSDs that keep it: Geometry.WriteThrough says so. With the cache it is so
// after a flush, or with FUA, which here is the write and a flush behind it.
//
// # Who may write
//
// Where the image has exclusive-lock, Open takes that lock and keeps it: another client that wants to write waits or fails, and one that lost
// the lock is blocklisted by who takes it. A second opening is ErrBusy. Images without that feature have no such guard.
//
// # A cluster that is away
//
// A request waits for Options.Timeout, then it fails with blockdev.ErrAway: an initiator sends it again. It may have been done, or may
// still be; but an OSD takes what one client asks of an object in order, so that it is never done behind a request that was submitted later. A client
// that is blocklisted fails with blockdev.ErrFenced until the device is opened again.
package rbd
