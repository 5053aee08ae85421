// Package rpcserver is the ONC RPC server (RFC 5531): it takes calls from TCP streams, from UDP and from RPC-over-RDMA
// connections (RFC 8166), and gives them to programs that know none of the three.
//
// # Who runs what
//
//  1. A connection has one goroutine that reads: the record marks of a stream, or the completions of a queue pair.
//  2. The program classes each call (Classify), its arguments parsed once. What is Inline the reader executes at once, so a cached READ costs
//     no hand-over; if it would block after all it answers Again, and a worker executes it.
//  3. What is Brief goes to the serial queue of its stream (serialqueue.go), or over RDMA to the owner of the connection (rdmaowner.go). The rest is the
//     worker pool's. Calls of one connection run side by side and are answered in
//     the order in which they end; a connection has a bounded number of calls in flight, and a stream's reader stops
//     at the bound. life.go has a call's states.
//  4. Replies of a stream are queued and written with one writev, by the goroutine that finds no other writing. What the socket
//     does not take at once is left to one flusher, so that a client that does not read holds no worker.
//  5. What requests and results take of memory has bounds over all connections, and one host has half of each (room.go, results.go,
//     hostmemory.go).
//
// Bulk data is not part of the message: a program asks Call.Data for the bytes of an argument and Call.Sink for memory
// for a result, and the transport puts both where they belong. Call.SetPayload says where in the reply a result stands; further results may follow it.
//
//	nfsd, err := nfs.NewServer(nfs.Options{}, nfs.Export{Path: "/data", Dir: "/srv/data"})
//	srv := rpcserver.NewServer(rpcserver.Options{}, nfsd.Programs()...)
//	go srv.ServeTCP(listener)
//	go srv.ServeRDMA(device, rdmaListener)
//	...
//	err = srv.Close(ctx)
package rpcserver
