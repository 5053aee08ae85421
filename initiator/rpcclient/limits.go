package rpcclient

import "time"

const (
	// maxPayload is the largest bulk argument or result in bytes.
	maxPayload = 1 << 20
	// maxRecord bounds a reply record in bytes: payload, head and room for listings.
	maxRecord = maxPayload + 128<<10
	// maxFragments bounds the fragments of one reply.
	maxFragments = 64
	// defaultTimeout is how long a call waits for its reply before the connection is taken for dead and made again: what
	// Linux takes for NFS over TCP.
	defaultTimeout = 60 * time.Second
	// minBackoff and maxBackoff bound the pause between attempts to connect.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second
	// stallTimeout is how long a caller who gives up waits for the server to take the rest of the call, which is being sent, before the
	// connection is made again.
	stallTimeout = time.Second
	// dialTimeout bounds one attempt to connect.
	dialTimeout = 15 * time.Second

	// credits are calls in flight asked for over RDMA; the server may grant fewer.
	credits = 32
	// inline is the largest inline message over RDMA, both ways, bytes: Linux's.
	inline = 4 << 10
	// rdmaMemory holds a payload buffer and a reply chunk for each credit, in all the pool's size classes.
	rdmaMemory = 128 << 20
	// maxReplyChunk is the largest reply chunk in bytes: a directory listing of 64 KiB and its head.
	maxReplyChunk = 72 << 10
)
