package iwarp

import "time"

// CRC is the policy for the checksum of FPDUs. RFC 5044 section 4.4 makes it the default; either side can demand it.
type CRC uint8

const (
	// CRCAuto is CRCOn, except where both ends are on one host: there it is CRCPeer, as loopback has no wire.
	CRCAuto CRC = iota
	// CRCOn demands it.
	CRCOn
	// CRCOff refuses a peer that demands it.
	CRCOff
	// CRCPeer leaves it to the peer.
	CRCPeer
)

// FPDU is the policy for the size of FPDUs sent.
type FPDU uint8

const (
	// FPDUAuto is FPDUBig on one host, and towards a peer that gives siw's GSO hint on a connection without CRC
	// (siw of Linux 6.1 mistakes a CRC that lies in two TCP segments); FPDUSegment otherwise.
	FPDUAuto FPDU = iota
	// FPDUSegment makes FPDUs begin and end with TCP segments (RFC 5044 section 5.1).
	FPDUSegment
	// FPDUBig sends FPDUs of up to 64 KiB, which adapters do not take.
	FPDUBig
)

// Options tune a device. The zero value is right for most.
type Options struct {
	CRC      CRC
	FPDU     FPDU
	Revision int // of MPA, for Dial: 1 (RFC 5044) or 2 (RFC 6581), the default. A listener answers in the peer's

	// PeerToPeer makes Dial ask for the peer-to-peer mode of RFC 6581, in which the initiator sends a zero-length frame
	// as soon as it is connected and the listener may send first after that.
	PeerToPeer bool

	RequestTimeout time.Duration // for the peer's MPA Request, default 10 s
	ReplyTimeout   time.Duration // for the peer's MPA Reply, default 5 s

	// Nudge is how long Dial's side waits for the first byte after the MPA Reply before it sends an empty RDMA Write, which
	// some responders need (nudge.go): default 250 ms, negative for never.
	Nudge time.Duration

	CopyThreshold int // payload of FPDUs below this many bytes may be copied from the look-ahead; default 8 KiB

	NoBatch    bool // one FPDU a system call, and no look-ahead beyond the next header
	NoZeroCopy bool // stage all payload received in the look-ahead buffer
	NoInline   bool // Post leaves the transmission to the flusher
	NoLazyRecv bool // every receive has its memory from the beginning

	rtr rtr // what to offer or to take, for tests; all by default
}

func (o Options) withDefaults() Options {
	if o.Revision == 0 {
		o.Revision = 2
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = requestTimeout
	}
	if o.ReplyTimeout <= 0 {
		o.ReplyTimeout = replyTimeout
	}
	if o.Nudge == 0 {
		o.Nudge = nudgeAfter
	}
	if o.CopyThreshold <= 0 {
		o.CopyThreshold = copyThreshold
	}
	if o.rtr == 0 {
		o.rtr = rtrSend | rtrWrite | rtrRead
	}
	return o
}
