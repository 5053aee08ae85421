package transporttest

import "time"

const (
	// defaultPatience is how long a case waits for what must happen: long, because a loaded machine is not a wrong one.
	defaultPatience = 60 * time.Second

	// linkBytes and segment are what a twin's link holds each way and what it carries at a time: small against a
	// 1 MiB message, so that every long message meets a full link and is seen half placed.
	linkBytes = 256 << 10
	segment   = 16 << 10

	// linkFrames bounds the frames of a link, because a flood of empty ones has no bytes.
	linkFrames = 1024

	// backlog is how many connection requests a twin's listener keeps unanswered.
	backlog = 128

	// twinSends and twinRecvs are the depths of a queue pair that asks for none.
	twinSends = 128
	twinRecvs = 128

	twinMaxSGE     = 16
	twinMaxMessage = 16 << 20
	twinMaxReads   = 128
	twinMaxPrivate = 508 // what MPA revision 2 leaves of RFC 5044's 512 bytes

	// scratchBytes bounds what one Faulty queue pair copies in order to corrupt it.
	scratchBytes = 4 << 20
)

// patience is defaultPatience; only the test that tries the suite on broken devices shortens it.
var patience = defaultPatience
