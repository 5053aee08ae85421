package iwarp

import "time"

const (
	// lastTurns is how many turns the engine reads on behind a send that failed: a peer's last words are few.
	lastTurns = 64

	// maxOwn is how many frames of the engine's own a send queue holds beside the upper protocol's requests: the
	// ready-to-receive frame and one nudge.
	maxOwn = 2

	maxPrivate      = 508                    // RFC 5044 section 7.1.1 allows 512 bytes of private data; RFC 6581 takes 4 of them
	maxReads        = 128                    // siw's and LIO's ceiling; each inbound one costs 64 bytes
	maxReads14      = 0x3fff                 // RFC 6581 section 9.1: not negotiated, left to the upper protocol
	maxSGE          = 16                     // a 16 MiB I/O in buffers of 1 MiB
	maxMessage      = 1<<31 - 1              // RFC 5040 section 4.4: a Read's size is 32 bits; half of it needs no signed care
	maxULPDU        = 0xfffc - 2             // RFC 5044 section 4.1: 16 bits of length, and a multiple of 4 with the length field
	bigPayload      = 60 << 10               // payload of an FPDU on loopback: the most whole pages below maxULPDU
	minMSS          = 536                    // RFC 9293 section 3.7.1; below it FPDUs are cut at TCP's whim anyway
	defaultSends    = 256                    // work requests, when QPOptions says nothing
	defaultRecvs    = 256                    // receives, likewise
	maxQueue        = 1 << 16                // work requests or receives of a QP; a bug above, not a workload
	copyThreshold   = 8 << 10                // payload below this may be copied once out of the look-ahead (measured, Options)
	lookAhead       = 64 << 10               // bytes read ahead of the parser: sixteen 4 KiB FPDUs a system call
	gather          = 128 << 10              // bytes behind which completions go to the owner: enough for several answers of 32 KiB
	inlineMax       = 512                    // a Send's payload below this rides in the header arena: one iovec less
	arenaSize       = 48 << 10               // headers, trailers and inlined payload of one transmit batch
	maxIOV          = 512                    // iovecs of one system call; Linux refuses more than 1024 (UIO_MAXIOV)
	maxBatch        = 512 << 10              // payload bytes of one system call: the peer starts on it while we go on
	maxGuess        = 32                     // segments of a message that one system call places ahead of their headers
	maxGuessed      = 48 << 10               // bytes of them, so that those of a wrong guess fit the look-ahead
	pollReads       = 64                     // system calls of one Poll, so that a stream of Writes cannot hold its owner
	maxHandshakes   = 256                    // connections of a listener that have not sent a whole MPA Request; the oldest gives way
	requestTimeout  = 10 * time.Second       // siw_cm.h MPAREQ_TIMEOUT
	replyTimeout    = 5 * time.Second        // siw_cm.h MPAREP_TIMEOUT
	lingerTimeout   = time.Second            // for a Terminate to leave and for the peer's FIN
	nudgeAfter      = 250 * time.Millisecond // longer than any answer on a machine room's wire takes
	nudgeTries      = 4                      // 0.25, 0.75, 1.75 and 3.75 s after the MPA Reply
	nudgeEnd        = time.Minute            // what is first sent later finds the responder ready
	mssRecheckBytes = 1 << 20                // transmit bytes between looks at the MSS, which path MTU discovery moves
)
