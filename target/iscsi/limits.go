package iscsi

import "time"

const (
	// lookAhead is the receive buffer of a TCP connection that has traffic: sixteen 4 KiB writes with immediate data, or
	// a thousand headers, a system call. An idle connection has none.
	lookAhead = 64 << 10

	// copyBelow is a payload in bytes. A shorter one that lies in the look-ahead is copied from there, because one
	// system call for many PDUs costs less than placing each.
	copyBelow = 8 << 10

	// maxIOV bounds one writev or readv: Linux takes 1024.
	maxIOV = 512

	// corkBytes is queued output that leaves before the owner has run out of input.
	corkBytes = 256 << 10

	// firstWindow is the command window of a new session, and what it falls back to when idle: with unexpectedPDUs, nine
	// receives over iSER in 48 KiB.
	firstWindow = 4
	// heedlessWindow is that of initiators which do not look at MaxCmdSN (floorLocked): 37 receives, on an adapter in 200 KiB.
	heedlessWindow = 32

	// maxManaging bounds the task management requests that wait for their answer. Those in order of CmdSN come on top
	// of immediate ones and move the window on. One more is rejected.
	maxManaging = 256

	// maxImmediate bounds the immediate commands in progress of one session (RFC 7143 section 4.2.2.1: at least two task
	// management requests must fit).
	maxImmediate = 16

	// unexpectedPDUs is MaxOutstandingUnexpectedPDUs as we declare it over iSER: the receives posted beyond the command
	// window, for pings, task management and a logout.
	unexpectedPDUs = 5

	// undeclaredUnasked bounds the PDUs that answer nothing for an iSER initiator that declares no limit: Linux posts
	// receives for two asynchronous events. maxUnasked bounds what an initiator can declare.
	undeclaredUnasked = 2
	maxUnasked        = 64

	// recvSegmentISER is TargetRecvDataSegmentLength: what lies behind a header in a posted receive. Three receives fit
	// 16 KiB of registered memory; more would make every idle session dear, less would split 4 KiB writes.
	recvSegmentISER = 4096

	// recvHeadISER is room for the iSER header, the BHS and additional headers of a 260-byte CDB and a bidirectional
	// length (RFC 7145 section 6.8 has 256 as the default of MaxAHSLength).
	recvHeadISER = 28 + 48 + 256 + 4

	// maxAHSISER is MaxAHSLength as we declare it.
	maxAHSISER = 256

	// loginISER is one login PDU over iSER (RFC 7143 section 13.12 and RFC 7145 section 6.4 have 8192 before login ends).
	loginISER = 28 + 48 + 8192

	// controlSegment bounds the data segment of requests other than SCSI ones in full-feature phase: text and pings.
	controlSegment = 8192

	// maxQueuedControl bounds responses of other kinds than SCSI that wait for a peer that does not read.
	maxQueuedControl = 256

	// lateMemory bounds the memory of what a session sends when it has waited for it: 1024 responses, or a few long answers.
	lateMemory = 256 << 10

	// stashLimit bounds the unsolicited data of one connection that waits in memory of its own for commands that cannot
	// take it yet. Beyond it new commands with such data get TASK SET FULL.
	stashLimit = 1 << 20

	// maxTextAnswer bounds a SendTargets answer.
	maxTextAnswer = 1 << 20

	// readsPerQP is the outbound read depth asked for: enough for 16 tasks of 64 KiB at once.
	readsPerQP = 32
)

// Limits bound what all peers together and each one may take. Zero fields get the defaults.
type Limits struct {
	Connections   int   // open at a time, unfinished logins included; default 1024
	PerHost       int   // of them by one host; default three quarters
	Logins        int   // unfinished logins; beyond it the oldest makes room; default 64
	Queue         int   // commands a session may have in progress: the widest CmdSN window; default 128
	SessionMemory int64 // registered bytes a session may hold; default 64 MiB
	RecvSegment   int   // MaxRecvDataSegmentLength over TCP, bytes; default 256 KiB
	MaxBurst      int   // MaxBurstLength, bytes; default 1 MiB
	FirstBurst    int   // FirstBurstLength, bytes; default 64 KiB
}

func (l *Limits) fill() {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Connections, 1024)
	def(&l.PerHost, max(1, l.Connections-l.Connections/4))
	def(&l.Logins, 64)
	def(&l.Queue, 128)
	l.Queue = max(l.Queue, 2)
	def(&l.RecvSegment, 256<<10)
	def(&l.MaxBurst, 1<<20)
	def(&l.FirstBurst, 64<<10)
	l.FirstBurst = min(l.FirstBurst, l.MaxBurst)
	if l.SessionMemory <= 0 {
		l.SessionMemory = 64 << 20
	}
}

// Timeouts bound how long a peer may keep the target waiting. Zero fields get the defaults.
type Timeouts struct {
	Login time.Duration // from accept to full-feature phase; default 15 s
	Peer  time.Duration // silence of a session after which it is gone; a ping goes out at half of it; default 30 s
	Drain time.Duration // what Close waits for initiators to leave; default 10 s
}

func (t *Timeouts) fill() {
	def := func(v *time.Duration, d time.Duration) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&t.Login, 15*time.Second)
	def(&t.Peer, 30*time.Second)
	def(&t.Drain, 10*time.Second)
}
