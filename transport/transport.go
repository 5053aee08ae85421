// Package transport is the fabric contract: what Sluice asks of an RNIC, in the words of the verbs (RFC 5040
// section 2), and what every provider below it keeps. Providers live in subdirectories; transporttest runs the rules
// below as cases on each of them.
//
// # Rules
//
//  1. A QP has one completion queue of its own. A busy-poll group is a loop over Poll.
//  2. The owner of a QP is the one goroutine that calls Poll and Wait; it runs the engine there, the responder of RDMA
//     Reads included, and never blocks elsewhere. Post and PostRecv may be called by any goroutine. Receive never waits
//     for transmit: Read Responses queue, bounded by the depth of inbound reads.
//  3. A Send or Write completes when the fabric has taken its bytes, which says nothing of the upper protocol at the peer. A
//     completion wakes a parked owner, once a parking.
//  4. Work requests start in the order of Post, and none but one with Fence waits for an earlier Read to start: what is
//     posted behind a Read reaches the peer however long the peer delays that. Completions come late for Reads and
//     Invalidates, and where Caps.InOrder says so in the order of Post: that of a Send may then wait for an earlier Read. An
//     upper protocol on such a device sizes its queue and the memory of its replies for those that wait so, and takes no
//     late completion for a peer's fault. A Bind is in force before any later work request of that QP reaches the peer. A
//     receive completion with Inv set means that STag is already dead.
//  5. The upper protocol keeps its outstanding Reads within Depth; one more is an error from Post. No provider stalls
//     its queue for Reads.
//  6. After Close, or when the stream fails, Poll returns every outstanding work request and receive with an error and
//     then ErrClosed, which wraps a *TerminateError when one was sent or received. After the last completion no byte
//     lands in any buffer and no STag of the QP is valid.
//  7. The memory that a Send or Write names is read until it completes. One that is not signaled is known to be complete
//     when a later signaled Send or Write is, or, for a Send, when a SendCounter has counted it; an answer of the peer's
//     proves nothing, for a peer may answer what it has not read. The place of an unsignaled request in the send queue is
//     free again no later than with the next completion of a request that was posted after it: who leaves requests
//     unsignaled has a signaled one among every QPOptions.Sends.
//  8. Registered memory stays mapped and keeps its pages (no madvise takes them away) from Register until Unregister, which
//     who registered calls after the last completion that names the slab and before the slab is closed. A device that is
//     closed has let go of all of it.
//
// Rules 2, 5 and 7 bind the upper protocol, rule 8 both sides, the others the provider. What a device leaves out of rules 4 and 6, and how
// exactly its windows are, stands in Caps; a rule that Caps does not name holds everywhere.
package transport

import (
	"context"
	"net"

	"github.com/sluice-storage/sluice/mem"
)

// Device is one RNIC, emulated or real. Its methods may be called by any goroutine.
type Device interface {
	// Name is what logs and `--provider` call it: "iwarp", "verbs", "shm", "twin".
	Name() string
	Caps() Caps
	// Register makes a slab known to the device, once, before any work request names it.
	Register(*mem.Slab) error
	// Unregister ends that (rule 8). It does nothing after Close, and fails where the device still uses the slab.
	Unregister(*mem.Slab) error
	// Gauges counts what exists now, over all connections.
	Gauges() Gauges
	// NewQP makes an unconnected queue pair; receives may be posted to it at once.
	NewQP(QPOptions) (QP, error)
	// Dial connects q to the listener at addr ("host:port") and returns what the peer said. On an error q is closed.
	Dial(ctx context.Context, addr string, q QP, p ConnParams) (Peer, error)
	Listen(ctx context.Context, addr string) (Listener, error)
	Close() error
}

// Caps are the powers of a device that an upper protocol may have to know. A device that has several adapters below it says
// what all of them can do.
type Caps struct {
	PerIOWindows bool // Bind gives a fresh STag for exactly the bytes named; otherwise Windows expose a whole slab, for as long as it is registered
	ExactWindows bool // a peer that leaves a window's bounds is refused; otherwise those of the slab below it are what holds
	RandomSTags  bool // STags cannot be foretold (RFC 5042 section 6.1.1); otherwise they are the adapter's, and few bits change
	RemoteInv    bool // Send with Invalidate, both ways; an initiator offers it only with PerIOWindows too
	InOrder      bool // completions come in the order of Post, across Reads (rule 4)
	OwnResponder bool // Reads are answered by the device, also while the owner is elsewhere; otherwise by the owner's Poll and Wait (rule 2)
	Terminates   bool // an end tells the peer its reason, a *TerminateError; otherwise both sides see ErrClosed and no more, and a Send without a receive waits for one
	MaxSGE       int  // of a Send or Write; a Read has one
	MaxBindSGE   int  // of a Bind
	MaxMessage   int  // bytes of one Write or Read
	MaxReads     int  // the largest Depth.In and Depth.Out
	MaxPrivate   int  // bytes of private data in ConnParams and Reject
	// PaddedPrivate says that private data comes without its length, and zeroes behind it: an upper protocol knows its own by
	// what is in it.
	PaddedPrivate bool
	// Memory is the kind of slabs that Register takes. Where it is mem.Shared, a peer can read every slab that a request of its queue pair has
	// named, whole, and may go on to when the connection has ended: who serves strangers gives each connection slabs of its own.
	Memory mem.Kind
}

// Gauges are what exists now, over all connections of a device. A connection that is gone has given back all of it.
type Gauges struct {
	Connections int
	Windows     int // STags of memory windows that a peer may name
	ReadSinks   int // STags of outstanding RDMA Reads, which only their responses may name
	Sends       int // work requests whose completion has not been seen
	Receives    int // receives posted
}

// Path is how the packets of a connection go.
type Path struct {
	Provider string // "iwarp", "verbs", "shm"
	Device   string // the adapter, "mlx5_0"; empty for what has none
	Port     int    // of the adapter, from 1; 0 for what has none
	GID      string // this side's
	Exposure string // what the peer may reach of this side's memory, in a few words: "nothing", "a window for each I/O"
}

// Pather is a QP that tells its path, once it is connected. Any goroutine may call it.
type Pather interface{ Path() Path }

// PathOf is what a connection says of its way, or else its device's name.
func PathOf(d Device, q QP) *Path {
	p := Path{Provider: d.Name()}
	if x, can := q.(Pather); can {
		p = x.Path()
	}
	return &p
}

// QPOptions size a queue pair. Zero values take the provider's defaults.
type QPOptions struct {
	Sends int // work requests outstanding at most
	Recvs int // receives posted at most
	// Slim asks a Widener to register no more memory for the queue pair than it uses, until Widen: its peer has proved nothing yet.
	Slim bool
}

// Widener is a QP of a provider that registers all memory once more for some connections.
type Widener interface {
	// Widen ends what QPOptions.Slim asked for. An error that is mem.ErrNoRoom says that there is no room for all memory; the queue pair
	// goes on as it was.
	Widen() error
}

// ConnParams are what one side of a connection set-up asks for (RFC 6581 section 9 for iWARP).
type ConnParams struct {
	Private  []byte // copied
	ReadsIn  int    // inbound RDMA Reads this side can serve at a time (IRD)
	ReadsOut int    // RDMA Reads this side wants outstanding at a time (ORD)
}

// Peer is what the other side said.
type Peer struct {
	Private       []byte // the receiver's to keep; with Caps.PaddedPrivate zeroes are behind it
	ReadsIn       int    // the peer's IRD, 0 if it named none
	ReadsOut      int    // the peer's ORD, 0 if it named none
	Named         bool   // the peer named IRD and ORD at all (MPA revision 2)
	Local, Remote net.Addr
}

// Listener hands out connection requests. Accept may be called by one goroutine at a time; Close by any.
type Listener interface {
	Accept(context.Context) (Request, error)
	Addr() net.Addr
	Close() error
}

// Request is a connection request that has been read and not been answered. Exactly one of its two answers is given.
type Request interface {
	Peer() Peer
	// Accept connects q. Receives must already be posted: the peer may send at once. On an error q is closed.
	Accept(ctx context.Context, q QP, p ConnParams) error
	// Reject refuses with private data of the upper protocol's.
	Reject(private []byte) error
}

// QP is one queue pair: a connection once Dial or Accept took it.
type QP interface {
	// PostRecv posts receive buffers, in order. It returns how many were taken; fewer than all come with an error.
	PostRecv([]Recv) (int, error)
	// Post starts work requests in order, with one doorbell or writev. It never waits for the peer. It returns how many
	// were taken; fewer than all come with an error, and those not taken never complete. The slice is the caller's
	// again on return, the memory that Local names only with the completion (rule 7).
	Post([]WR) (int, error)
	// Poll fills wc with completions and runs the engine. It never blocks: 0 and no error mean nothing is there yet.
	Poll(wc []WC) (int, error)
	// Wait returns when Poll would yield something or fail, or with the context's error. Only the owner calls it.
	Wait(context.Context) error
	// NewWindow makes a memory window of this QP, at set-up, one for each command slot.
	NewWindow() (Window, error)
	// Depth is the number of Reads that may be outstanding each way, valid once connected.
	Depth() Depth
	// Close ends the connection, with a Terminate for reasons that have one. Any goroutine may call it, any number of
	// times; the first Reason counts.
	Close(Reason) error
}

// LazyReceiver is a QP whose receives can do without memory until a message comes. What is posted for messages that may
// come, and on most connections do not, is then no memory at all.
type LazyReceiver interface {
	// RecvMemory lets receives be posted with an empty Buf; false means that this QP does not. It is called before the QP
	// is connected. When a message for such a receive begins, the owner's Poll or Wait calls source for its memory, with
	// no lock of the QP's held; it must not block. Where source has none, the message stays on the wire until the owner
	// has taken the completions there are and polls again; with no completion there is nothing to wait for, and the
	// connection ends.
	RecvMemory(source func(token uint64) (mem.Span, bool)) bool
}

// SendCounter is a QP that tells which Sends it has let go of without a completion for each.
type SendCounter interface {
	// SendsDone is how many of the Sends that were posted to this QP, in their order, read no memory any more. Any
	// goroutine may call it; nothing wakes a goroutine that waits for it to grow.
	SendsDone() uint64
}

// Trimmer is a QP that can give back memory when its connection has gone idle. Any goroutine may call Trim.
type Trimmer interface{ Trim() }

// Depth bounds outstanding RDMA Reads.
type Depth struct {
	In  int // the peer's Reads that this side serves at a time
	Out int // Reads this side may have outstanding
}

// Recv is one receive buffer.
type Recv struct {
	Token uint64
	Buf   mem.Span
}

// Op says what a work request or completion is.
type Op uint8

// The work requests of RFC 5040 section 5, and the two local ones.
const (
	OpSend       Op = iota + 1
	OpSendInv       // Send with Invalidate of WR.Inv
	OpWrite         // RDMA Write of Local to Remote
	OpRead          // RDMA Read of Remote into Local[0], all of it
	OpBind          // makes Window stand for Local with Access
	OpInvalidate    // ends the STag of Window, locally
	OpRecv          // in completions only
)

// Flags modify a work request.
type Flags uint8

const (
	// Signaled asks for a completion on success too; an error always completes.
	Signaled Flags = 1 << iota
	// Solicited marks a Send as one that should wake the peer.
	Solicited
	// Fence starts the request only when all earlier Reads of the QP are complete.
	Fence
)

// Access is what a bound window grants the peer.
type Access uint8

const (
	// RemoteRead lets the peer's RDMA Read take from the window.
	RemoteRead Access = 1 << iota
	// RemoteWrite lets the peer's RDMA Write place into the window.
	RemoteWrite
)

// Remote names memory of the peer, in the peer's terms.
type Remote struct {
	STag uint32
	Off  uint64 // tagged offset or virtual address, bytes
}

// Window is memory exposed to the peer for the life of one I/O. The STag and base are the provider's choice: an upper
// protocol that could choose them could be guessed (RFC 5042 section 6.1.1).
type Window interface {
	// Remote is what to advertise, valid from the return of the Post that took the Bind until it is invalidated. The
	// STag is never 0 and base plus length never wraps.
	Remote() Remote
	// Valid reports whether the STag still grants access. Only the owner's view after a Poll is exact.
	Valid() bool
}

// WR is one work request.
type WR struct {
	Op     Op
	Flags  Flags
	Access Access // Bind
	Token  uint64 // comes back in the WC: an index, never a pointer
	Local  []mem.Span
	Remote Remote // Write, Read
	Window Window // Bind, Invalidate
	Inv    uint32 // SendInv: the peer's STag that ends
}

// WC is one completion.
type WC struct {
	Token uint64
	Op    Op
	Len   uint32 // bytes received, for OpRecv; bytes moved otherwise
	Inv   uint32 // for OpRecv: the STag that this Send invalidated, dead already; 0 for none
	Err   error  // nil, or why the request did not succeed; *TerminateError or ErrClosed inside
}
