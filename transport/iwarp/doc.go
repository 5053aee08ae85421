// Package iwarp is a software RNIC: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040) over TCP, on the
// wire the same as Linux siw and as iWARP adapters. It is a provider of package transport.
//
// New makes the device. Beside the methods of transport.Device there is an entry for a server whose one port carries RDMA and
// a plain byte stream: Device.Request takes one connection that was accepted elsewhere, with the bytes read from it, and returns
// the transport.Request. IsMPARequest tells from the first bytes.
//
// Device.Stats and QP.Stats count what moved and what was copied.
//
// # Flow
//
//  1. Post, on any goroutine, copies work requests into the send queue and, if no goroutine transmits, cuts messages
//     into FPDUs and hands them to the socket, many FPDUs a system call. A full socket hands the rest to the QP's one
//     flusher goroutine, which sleeps until the socket takes more.
//  2. The owner's Poll or Wait reads the socket. Payload goes from the socket to the memory that the header names; what
//     follows goes to a look-ahead buffer, from where the next headers are parsed.
//  3. A Read Request becomes an entry of the response queue, which the transmitter serves in turns with the send queue.
//     The owner never waits for the transmitter.
//  4. The goroutine that finds an error records it; the flusher sends the Terminate, shuts the stream down, and closes it; the
//     owner's Poll returns all that was outstanding.
//
// Payload goes to its place before the CRC behind it is known (RFC 5044 section 6 has it checked first): what a bad frame
// places lies within what the peer may write anyway, nothing completes on it, and the connection ends. A Send or Write
// completes when the socket has taken it, also ahead of an earlier RDMA Read (RFC 5040 section 5.5 rule 15 wants the order
// of submission): rule 4 of package transport says so, the peer cannot tell, and buffers come back a round trip earlier.
//
// Locks, in the order they may be nested: tx (send and response queues), stags (windows and outstanding Reads), rq
// (receives), cq (completions of the transmitter). The receive state has none: it is the owner's.
package iwarp
