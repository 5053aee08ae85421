// Package nbd shows a volume to local programs as a network block device: a fixed-newstyle server (the NBD protocol's
// doc/proto.md) with structured replies, block status, FUA, trim, write zeroes and several connections.
//
// # Flow
//
//  1. Each connection has a reader and a writer goroutine and a fixed number of slots. The reader takes a free slot, reads
//     the request's header and, for a write, its payload straight into a registered buffer, and submits it to the volume.
//  2. The volume's callback puts the slot into the writer's queue. It never touches the socket.
//  3. The writer takes all that is queued, sends headers and payloads with one writev, gives the buffers back and frees
//     the slots. With no slot free the reader does not read: backpressure is the socket's.
//
// Payload is copied only by the socket itself.
package nbd
