package rpcserver

import "time"

const (
	// MaxPayload is the largest bulk argument or result in bytes: what FSINFO names as rtmax and wtmax.
	MaxPayload = 1 << 20
	// MaxRecord bounds a stream's record: the payload, and room for a header, two handles and names.
	MaxRecord = MaxPayload + 16<<10
	// maxHeld is how many bytes of results a stream may have unwritten before no more of its calls are read, nor results made.
	maxHeld = 16 << 20
	// minLoan is how long a result must be, bytes, to be lent by the page and not read: below it the system calls cost more
	// than the copies do (measured).
	minLoan = 256 << 10
	// maxPipes bounds the pipes of all streams, each with two descriptors.
	maxPipes = 256
	// bulkRecord is from where a record's body is read straight to its place, bytes: what is in the look-ahead is copied.
	bulkRecord = 32 << 10
	// bodyAlign is what the end of a bulky record is aligned to in memory, bytes: a power of two, the size of a page.
	bodyAlign = 4 << 10
	// maxHeader bounds the guess at what of the next record comes before its bulk data, bytes: a mark and a call with a
	// credential of 16 groups and a long host name.
	maxHeader = 1 << 10
	// maxFragments bounds the fragments of one record; real clients send one.
	maxFragments = 64
	// maxInFlight bounds the calls of one stream that are not answered yet. Linux has 128 slots at most by default.
	maxInFlight = 128
	// maxConns bounds connections, so that descriptors are left for files.
	maxConns = 1024
	// maxHostConns bounds those of one host, so that it keeps no other out. Linux opens 16 at most for a mount (nconnect).
	maxHostConns = 256
	// maxNetConns bounds those of an IPv6 network of 64 bits: it may be one host's, or a LAN's with all its machines.
	maxNetConns = maxConns / 2
	// maxRequests bounds the memory of requests that are not answered yet, bytes, over all streams: those that do not fit
	// what a Call has for itself.
	maxRequests = 512 << 20
	// maxResults bounds the memory of results, bytes, over all streams: those that are read, and those that clients have not taken yet. A host has
	// half: the calls that may hang with its media leave a quarter of that (maxOfHost in target/filesystem).
	maxResults = 512 << 20
	// smallResult is up to how many bytes a result takes none of that: calls in flight bound them.
	smallResult = 8 << 10
	// trustTime is how long it counts that a client has shown a right, connected or not: longer than switches take to start. Of those
	// that are gone it is remembered for maxTrusted, the latest. trustAgain is how old it may be and not be noted again.
	trustTime  = 15 * time.Minute
	trustAgain = 10 * time.Second
	maxTrusted = 4096
	// beliefTime is how long a new connection of such a client may do without: its repeated WRITEs come first, and with each it shows
	// the right again.
	beliefTime = 2 * time.Minute
	// watchTick is how often connections are looked at.
	watchTick = 10 * time.Second
	// idleTime is how long a connection may be without a call: what knfsd gives (net/sunrpc/svc_xprt.c).
	idleTime = 6 * time.Minute
	// shrinkTime is how long a connection with memory of its own has no call before it gives back what it took beyond the least.
	shrinkTime = 30 * time.Second
	// recordTime is how long the rest of a record may take: 1 MiB at 9 KB/s.
	recordTime = 2 * time.Minute
	// unreadTime is how long a peer may take none of the replies that wait for it.
	unreadTime = 5 * time.Minute
	// fabricTime is how long an RDMA connection may have work requests outstanding of which none completes: their memory is
	// taken from other connections.
	fabricTime = time.Minute
	// moveTime is how long the Reads of one call, or one reply, may be on their way, however others of its connection move: all credits of 1 MiB
	// at 400 KB/s.
	moveTime = 3 * time.Minute
	// minHostFabric is the least that a host may have of registered memory, bytes, where there is little.
	minHostFabric = 10 << 20
	// roomTime is for how long a client is refused whose connection ended for want of room for its memory. Linux comes again at once after
	// a connection that ended, and waits longer each time it is refused (net/sunrpc/xprtrdma/transport.c).
	roomTime = 5 * time.Second
	// maxLongCall bounds a message in a position-zero chunk, bytes, which is copied out of registered memory: the longest call without bulk data
	// fits, an access control list of a thousand entries. Bulk data comes in a chunk of its own (RFC 8267 section 2).
	maxLongCall = 32 << 10
	// settleTime bounds how long a new connection waits for the calls of those that its host has left.
	settleTime = 15 * time.Second
	// maxWorkers bounds goroutines that may block in the file system, each perhaps in an OS thread.
	maxWorkers = 64
	// claimCalls are the calls of a new connection that may be repetitions: more than clients have in flight. claimSlots is
	// what of them is remembered for a host, and claimBytes what of each counts, bytes.
	claimCalls = 512
	claimSlots = 4096
	claimBytes = 256
	// stuckTime is how long a worker is in one call before it does not count among them, and maxStuck how many more than
	// maxWorkers there may be for that.
	stuckTime = time.Second
	maxStuck  = 448
	// readAhead is a stream's look-ahead in bytes: many small calls in one read.
	readAhead = 64 << 10
	// inlineBody is what a Call keeps for the message for itself, bytes: all but WRITE fit.
	inlineBody = 4 << 10
	// flushBytes is how much of replies may wait for company before they are written.
	flushBytes = 256 << 10
	// maxIovecs bounds one writev (UIO_MAXIOV is 1024).
	maxIovecs = 64
	// maxReply is how large a reply without payload a Call keeps memory for, bytes; READDIRPLUS goes up to 64 KiB.
	maxReply = 72 << 10
	// lingerTime is how long a peer that has closed its sending side may take to read its last replies.
	lingerTime = 10 * time.Second
	// maxDatagram is the largest call or reply over UDP in bytes.
	maxDatagram = 8800

	// cacheEntries bounds the reply cache, over all shards. A retransmission comes within seconds; at 1000 metadata
	// changes a second this is 8 seconds.
	cacheEntries = 8192
	// cacheAge is how long a reply is worth keeping: longer than a client's largest retransmission interval.
	cacheAge = 2 * time.Minute
	// cacheReply bounds a kept reply in bytes. CREATE's is the longest of the procedures that are kept.
	cacheReply = 1024

	// acceptPause keeps a listener that is out of descriptors from spinning.
	acceptPause = 50 * time.Millisecond

	// defaultCredits are the calls in flight granted to an RDMA connection: what knfsd grants.
	defaultCredits = 64
	// maxCredits bounds what configuration may grant; each credit costs three inline buffers.
	maxCredits = 1024
	// creditsPerStep is what a connection begins with, and what it gets and loses at a time: with inline messages of 4 KiB
	// a step fits the pool's buffers of 256 KiB.
	creditsPerStep = 16
	// creditIdle is how long credits must have been unused to be taken back.
	creditIdle = 10 * time.Second
	// starvedCredits are granted while bulk data waits for memory: what is under way is answered, little is added.
	starvedCredits = 2
	// defaultInline is the size of an inline message in bytes: what Linux names in its private message.
	defaultInline = 4 << 10
	// defaultMemory is registered memory for bulk data, bytes: all credits of eight busy clients at 1 MiB.
	defaultMemory = 512 << 20
	// spareRecvs are for RDMA_DONE and RDMA_ERROR messages, which no credit covers (RFC 8166 section 3.3.1).
	spareRecvs = 4
	// readDepth is the RDMA Reads wanted outstanding; the client has the last word.
	readDepth = 32
	// maxSends bounds the work requests of a queue pair; more wait in the connection.
	maxSends = 1024
	// systemTimeout bounds a call to the system's rpcbind, which is on this machine.
	systemTimeout = 10 * time.Second
	// maxDump bounds what it answers, bytes: a thousand entries.
	maxDump = 128 << 10
	// acceptTime bounds the set-up of a connection that was requested.
	acceptTime = 30 * time.Second
)
