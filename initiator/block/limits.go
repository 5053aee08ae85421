package block

import "time"

const (
	// DefaultDepth is the number of commands a session keeps at the target at most; the target's MaxCmdSN may be less.
	DefaultDepth = 128
	// MaxDepth is what task tags leave room for.
	MaxDepth = 1024
	// DefaultPiece is the longest transfer of one command: Linux's initiators stop at 1 MiB as well, and siw registers
	// no more than that.
	DefaultPiece = 1 << 20
	// commandTimeout is how long one command may take before it is aborted: Linux's sd waits as long.
	commandTimeout = 30 * time.Second
	// slowPatience is how many times that flushes, UNMAP and WRITE SAME may take.
	slowPatience = 4
	// edgeTries bounds how often a block that is written in part is changed by others before this writer's turn: each round one
	// of them succeeds.
	edgeTries = 10000
	// maxTimeouts bounds how often a request is begun that the target does not answer.
	maxTimeouts = 3
	// fenceGrace is how long a lost path may come back before its commands are ended by a reset that other hosts do not
	// hear of.
	fenceGrace = 5 * time.Second
	// vouchTimeout is how long another path is asked whether the target has had its power all along.
	vouchTimeout = 5 * time.Second
	// maxLooks bounds how often a unit is asked what it is while it says that it changes.
	maxLooks = 8
	// maxRetries bounds how often one request is sent again after a status that asks for it.
	maxRetries = 8
	// retryDelay is the pause after BUSY, TASK SET FULL and a target port in transition.
	retryDelay = 50 * time.Millisecond
	// unexpected is what we declare as MaxOutstandingUnexpectedPDUs: receives beyond one for each command.
	unexpected = 16
	// recvData is our InitiatorRecvDataSegmentLength: sense data is 252 bytes at most, other control PDUs less.
	recvData = 1024
	// recvTCP is our MaxRecvDataSegmentLength: with it the data of a usual read is one PDU or four.
	recvTCP = 256 << 10
	// wantBurst and wantFirst are offered for TCP; they bound R2T and immediate data.
	wantBurst = 1 << 20
	wantFirst = 256 << 10
	// controls is the number of control PDUs (NOP, task management, logout) under way at a time.
	controls = 16
	// slotSize is the memory of a command slot: header, and up to scratchSize bytes of parameter data.
	slotSize    = 1536
	scratchOff  = 384
	scratchSize = slotSize - scratchOff
	// lookahead is what a TCP read takes beyond the payload it was made for: headers to come, and payloads so short
	// that copying them costs less than another system call.
	lookahead = 8 << 10
	// writeBatch bounds the bytes of one writev, so that a queue of large writes does not starve a short command.
	writeBatch = 2 << 20
	// maxIOV bounds the pieces of one writev; the kernel's bound is 1024.
	maxIOV = 512
	// loginTimeout bounds a connection set-up and login.
	loginTimeout = 15 * time.Second
	// maxRedirects bounds the addresses that one login is sent on to.
	maxRedirects = 4
	// maxAborts bounds task management requests under way: a target has room for few immediate PDUs.
	maxAborts = 8
	// keepalive is the silence after which a NOP-Out asks whether the target is there; twice that ends the session.
	keepalive = 5 * time.Second
	// abortTimeout is how long an aborted command's end is waited for before the connection is dropped instead.
	abortTimeout = 10 * time.Second
	// logoutTimeout is how long the answer to a logout is waited for.
	logoutTimeout = 2 * time.Second
	// lingerTimeout is how long after that answer the target's end of the connection is waited for.
	lingerTimeout = 250 * time.Millisecond
	// minBackoff and maxBackoff are the pauses between attempts to log in again.
	minBackoff = 100 * time.Millisecond
	maxBackoff = 5 * time.Second
	// reconnectLimit is how long requests wait for a path by default.
	reconnectLimit = 60 * time.Second
	// memoryLimit is the size of an initiator's own pool.
	memoryLimit = 256 << 20
	// spareMemory bounds what connections get of their own where the pool has nothing. One of the default depth takes about
	// 400 KiB, one of the largest 3 MiB.
	spareMemory = 64 << 20
)
