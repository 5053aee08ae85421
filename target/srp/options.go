package srp

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

const (
	// spareReceives are posted beside those that credits promise: for SRP_I_LOGOUT, and for answers to what this target asks.
	spareReceives = 4

	// leastUnit is the shortest unit length that an initiator can ask for, in bytes (SRP r16a section 6.2), and maxUnit the longest: one buffer of
	// the pool's 64 KiB, so that a channel's receives stay within its quota. Linux asks for 8,260 by default.
	leastUnit = 64
	maxUnit   = 64 << 10
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
)

// Options configure a Server. Zero numbers get the defaults.
type Options struct {
	// Memory is where all data lives. Every slab of it is registered with each device that is served.
	Memory *mem.Pool
	// Find says what a login gets that comes in by a portal of a group, names a target port and says which initiator port it comes from. An error
	// refuses it. There is no proof of who an initiator is: a target that asks for one is not to be found. Any goroutine may call it.
	Find func(group uint16, target, initiator scsi.SRPPort) (Grant, error)
	// Log gets a line for each session and refusal; nil logs nothing. Audit gets them instead, where it is set.
	Log, Audit *zap.Logger

	Connections   int   // channels open at a time, unfinished logins included; default 1024
	PerHost       int   // of them by one host; default three quarters
	Channels      int   // of one session; default 16
	Queue         int   // requests that a channel may have outstanding; default 64
	SessionMemory int64 // registered bytes that the commands of a session may hold; default 64 MiB

	Login time.Duration // from the connection request to its answer; default 15 s
	Peer  time.Duration // silence of a channel after which it is gone; it is asked at half of it; default 30 s
	Drain time.Duration // what Close waits for commands; default 10 s
}

// Grant is what a login gets.
type Grant struct {
	Target string // its name
	SCSI   *scsi.Target
	Sees   func(lun uint16) bool // which LUNs the initiator sees, asked again by Target.RefreshVisible; nil for all
}

func (o *Options) fill() error {
	if o.Memory == nil || o.Find == nil {
		return errors.New("srp: a server needs a memory pool, and to be told what a login gets")
	}
	o.Log = cmp.Or(o.Log, zap.NewNop())
	o.Audit = cmp.Or(o.Audit, o.Log)
	o.Connections = cmp.Or(o.Connections, 1024)
	o.PerHost = cmp.Or(o.PerHost, max(1, o.Connections-o.Connections/4))
	o.Channels = cmp.Or(o.Channels, 16)
	o.Queue = max(2, cmp.Or(o.Queue, 64)) // a command, and the task management that ends it
	o.SessionMemory = cmp.Or(o.SessionMemory, 64<<20)
	o.Login, o.Peer, o.Drain = cmp.Or(o.Login, 15*time.Second), cmp.Or(o.Peer, 30*time.Second), cmp.Or(o.Drain, 10*time.Second)
	return nil
}

// TargetPort is the identifier of a target's port behind a portal of a group. The GUID is made of the target's name, as a local EUI-64; the extension is
// the group. So it is the same after each start and on each machine, as the name is.
func TargetPort(target string, group uint16) (p scsi.SRPPort) {
	sum := sha256.Sum256([]byte("SRP target port of " + target))
	binary.BigEndian.PutUint16(p[6:], group)
	copy(p[8:], sum[:])
	p[8] = p[8]&^1 | 2
	return p
}
