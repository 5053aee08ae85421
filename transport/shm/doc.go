// Package shm moves data between two processes of one host through memory that they share. It is a provider of package transport.
//
// # Set-up
//
// A listener is a unix socket of type SOCK_SEQPACKET in the file system; the rights of its file say who may connect, and SO_PEERCRED who
// has. The dialler sends a request, the listener a reply or a refusal; each of the first two brings the file of a region (memfd_create).
// Afterwards the socket carries files of slabs and the bell, and its end is the end of the connection: the kernel closes it for a process
// that is killed.
//
// # Memory
//
// Each side writes only what is its own, and reads what is the other's. Its region holds a ring of records, how many of the other's it
// has taken, and how it has ended. Its slabs (mem.Shared) hold payload. Their files are sealed against growing, shrinking and writing
// before they are passed on, have all of their pages, and are mapped read-only by the peer, who refuses others: a file that can be cut short
// ends a process that reads it with SIGBUS. A slab is shown to a peer when a request first names it that goes to that peer; then the peer
// can read all of it until the connection ends, and longer if it keeps its mapping. So a connection with a stranger needs slabs of
// its own (transport.Caps.Memory).
//
// # Flow
//
//  1. Post, on any goroutine, copies work requests into the send queue, and as records into the ring as far as that has room. Payload of up
//     to 512 bytes is in the record; otherwise the record says where it lies.
//  2. The peer's owner, in Poll or Wait, copies a record out of the ring, checks it, and copies the payload, once, from the sender's
//     slab to its place: the receive, or the memory of the STag that the record names. Then it counts the record as taken, and the
//     sender's request is complete.
//  3. A Read Request is checked by its responder, who answers with a record that says where the bytes lie. The requester copies them. The
//     window is referred to until it has taken that record.
//  4. A side that waits says so in its region, looks once more, and parks in the runtime's poller. Who has put something into the ring, or
//     has taken what the other waits for, looks there and rings. Before it parks the owner looks again and again for a few microseconds.
//
// The bell is a message of one byte on the socket. An eventfd would be less work for the kernel, but the two ends of one share their
// flags and their counter: a peer that makes it blocking and full holds the end that rings in write(2) for ever. The ends of a
// socket share nothing.
//
// # A peer that lies
//
// The peer may change what it shares at any moment. Each number in it is copied once and checked before it is used, and nothing is
// decided on payload that has not been copied. Its numbers of slots are believed within what the ring can hold. A broken rule ends the
// connection with the Terminate that iWARP has for it (RFC 5040 section 4.8, RFC 5041 section 7.2), in the last words of the region.
//
// # The end
//
// Who ends a connection says so in its region before it takes its memory back, and closes the socket. The other side takes what is in the
// ring; payload that it copies from a slab it delivers only where the end had not come when the copy was made. When the engine is
// out of them, mappings and files go: no goroutine is needed for that, and none belongs to a connection.
//
// Locks, in the order they may be nested: eng (held while the mappings are used by the owner), tx (send and response queues, the
// ring, what is shown), stags (windows and outstanding Reads), rq (receives).
package shm
