// Package nbd shows a volume to local programs as a network block device: a fixed-newstyle server (the NBD protocol's
// doc/proto.md) with structured replies, block status, FUA, trim, write zeroes and several connections.
//
// # Flow
//
//  1. Each connection has a reader and a writer goroutine and a fixed number of slots. The reader takes a free slot for each
//     request that came, reads a write's payload into a registered buffer, and submits together what came together.
//  2. The volume's callbacks queue answers, and when no more requests end just then, the volume's goroutine sends them with one
//     system call, if they are short and the socket takes them. It never waits for the socket.
//  3. The writer does the rest. Who has sent gives the buffers back and frees the slots. With no slot free the reader does
//     not read: backpressure is the socket's.
//
// Payload is copied only by the socket itself, but for what came with the headers of short writes.
package nbd
