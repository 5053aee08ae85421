// Package verbs is the provider for RDMA adapters: InfiniBand, RoCE and iWARP hardware, and the kernel's soft devices,
// through rdma-core (libibverbs and librdmacm).
//
// The provider is Go and speaks to the libraries through a table of calls (table.go). In a binary that was built with the tag
// verbs the table is a C shim that opens the libraries when they are first needed; other binaries, and machines without the
// libraries, say so and have the other providers. The tests have a model of the libraries and of four makes of adapter.
//
// # Flow
//
//  1. Open takes all adapters, or those named, as one transport.Device. Which adapter a connection uses is known when its
//     address is resolved or its request has come: NewQP makes a Go object, and receives, windows and the rest are made with
//     the adapter's objects (QP.make).
//  2. Post makes one array of requests and calls the library once. Unsignaled requests give their places back with the next
//     completion; every so often one is signaled for that, and its completion stays here.
//  3. The owner's Poll takes completions straight from the adapter. Its Wait arms the completion channel, looks again and
//     parks in Go's poller.
//  4. One goroutine takes the connection manager's events, one for each adapter its asynchronous ones. They hand on and never
//     block or destroy.
//  5. The end of a queue pair (end.go) has a goroutine: what is outstanding completes, the queue pair is destroyed, then
//     windows, queues, channel and id, each after what was made in it; only then the owner hears of the end.
//
// # Exposure
//
// What only sends, writes and reads exposes nothing: a slab's region is open to the adapter alone. On iWARP hardware the sink
// of a Read needs a region that is open to remote writes: such an adapter is taken only with Options.WholeSlab. What lets its
// peer read or write does so through memory windows
// of type 2B, one a command slot, bound to the bytes of one I/O. An adapter without them is refused for that, unless
// Options.WholeSlab gives the peer the slabs whole; each connection has a protection domain of its own then.
package verbs
