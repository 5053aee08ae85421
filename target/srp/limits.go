package srp

import "time"

const (
	// spareReceives are posted beside those that credits promise: for SRP_I_LOGOUT, and for the answer to the one request that this target has
	// under way.
	spareReceives = 4

	// leastUnit is the shortest unit length that an initiator can ask for, in bytes (SRP r16a section 6.2).
	leastUnit = 64
	// maxUnit is the longest: immediate data of 64 KiB. Linux asks for 8,260 bytes by default.
	maxUnit = 64<<10 + 1<<10
	// receiveMemory bounds the receives of one channel in bytes, and with long units the credits: 64 of Linux's default take 560 KiB.
	receiveMemory = 2 << 20

	// responseUnit is the longest unit sent, as Linux's own target has it by default: response data and 96 bytes of sense.
	responseUnit = 256

	// maxDescriptors bounds the memory descriptors of one buffer, 32 KiB where they are fetched. Linux makes no more than 2,048.
	maxDescriptors = 2048

	// writesTogether is how many Writes of one task are queued at a time, and readsTogether how many Reads. A buffer of many small pieces would fill
	// the queue else.
	writesTogether = 32
	readsTogether  = 16

	// readsPerQP is the outbound read depth asked for. Linux serves 4.
	readsPerQP = 32

	// corkBytes is queued output that leaves before the owner has run out of input.
	corkBytes = 256 << 10

	// lastWords is how long an initiator has to take SRP_T_LOGOUT.
	lastWords = time.Second

	// sessionsNamed is the number after which the handles of sessions begin again.
	sessionsNamed = 1 << 30
)

// Limits bound what all peers together and each one may take. Zero fields get the defaults.
type Limits struct {
	Connections   int   // channels open at a time, unfinished logins included; default 1024
	PerHost       int   // of them by one host; default three quarters
	Channels      int   // of one session; default 16
	Queue         int   // requests that a channel may have outstanding; default 64
	SessionMemory int64 // registered bytes that the commands of a session may hold; default 64 MiB
}

func (l *Limits) fill() {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Connections, 1024)
	def(&l.PerHost, max(1, l.Connections-l.Connections/4))
	def(&l.Channels, 16)
	def(&l.Queue, 64)
	l.Queue = max(l.Queue, 2) // a command, and the task management that ends it
	if l.SessionMemory <= 0 {
		l.SessionMemory = 64 << 20
	}
}

// Timeouts bound how long a peer may keep the target waiting. Zero fields get the defaults.
type Timeouts struct {
	Login time.Duration // from the connection request to its answer; default 15 s
	Peer  time.Duration // silence of a channel after which it is gone; it is asked at half of it; default 30 s
	Drain time.Duration // what Close waits for commands; default 10 s
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
