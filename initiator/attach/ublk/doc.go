// Package ublk shows a volume as a block device /dev/ublkbN of the kernel's user-space block driver (ublk_drv, Linux 6.0 and
// later; include/uapi/linux/ublk_cmd.h), driven over io_uring rings of our own. It needs root.
//
// # Flow
//
//  1. Each hardware queue of the device has one thread, one ring, and one request of the ring out for each tag: FETCH_REQ,
//     which ends when the kernel has a request of the block layer for that tag.
//  2. The thread reads the request's descriptor from memory shared with the kernel, takes a registered buffer, and submits
//     to the volume. For a write it first has the kernel fill the buffer (NEED_GET_DATA), so that memory is held for requests
//     under way only.
//  3. The volume's callback puts the tag into the queue's list and, if the thread sleeps, wakes it by an eventfd that the ring
//     reads. The thread commits all that is there with one system call, which copies the data of reads, and asks for
//     the tags' next requests with the same entries.
//
// # Ends
//
// Stop takes the block device away, lets the queues end and deletes the device. When the process is killed the kernel takes the
// block device away by itself, and leaves the control device /dev/ublkcN; Delete of the next process removes it.
package ublk
