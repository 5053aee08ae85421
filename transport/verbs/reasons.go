package verbs

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/transport"
)

var (
	errForeignQP     = errors.New("verbs: the queue pair is not one of this device")
	errUsedQP        = errors.New("verbs: the queue pair has been used for a connection already")
	errAnswered      = errors.New("verbs: the connection request has been answered already")
	errNotConnected  = errors.New("verbs: the queue pair is not connected")
	errForeignWindow = errors.New("verbs: the window is not one of this queue pair")
	errBound         = errors.New("verbs: bind of a window that is bound; invalidate it first")
	errOnePiece      = errors.New("verbs: a window covers one contiguous range of one slab (Caps.MaxBindSGE)")
	errReadLocal     = errors.New("verbs: an RDMA Read needs exactly one piece of local memory")
	errNoBuf         = errors.New("verbs: a receive without memory")
)

// LinkError is the end of a connection for a reason of the fabric below it. It is a transport.ErrClosed.
type LinkError struct {
	Device string // the adapter, empty if unknown
	Reason string // one sentence
	Err    error  // what lies below it, or nil

	untold bool // the adapter has stopped the connection, and has not said why
	asked  bool // the end is one side's will
}

func (e *LinkError) Error() string {
	s := "verbs: "
	if e.Device != "" {
		s += e.Device + ": "
	}
	s += e.Reason
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes it an end like any other.
func (e *LinkError) Is(target error) bool {
	return target == transport.ErrClosed || target == transport.ErrLost && !e.asked
}

func (e *LinkError) Unwrap() error { return e.Err }

// WorkError is the end of a connection by a work request that the adapter could not carry out. It is a transport.ErrClosed.
type WorkError struct {
	Status uint32 // ibv_wc_status
	Vendor uint32 // the adapter's own code
	Op     transport.Op
}

func (e *WorkError) Error() string {
	return fmt.Sprintf("verbs: %s (%s, status %d, vendor code 0x%x)", statusText(wcStatus(e.Status)), opText(e.Op), e.Status, e.Vendor)
}

// Is makes it an end like any other.
func (e *WorkError) Is(target error) bool {
	return target == transport.ErrClosed || target == transport.ErrLost
}

// statusText says in a sentence what a status means to who reads a log.
func statusText(s wcStatus) string {
	switch s {
	case wcLocLen:
		return "a message was longer than the receive posted for it (local length error)"
	case wcLocQPOp:
		return "the adapter could not carry out a work request of ours: its port has gone down, or the request is wrong (local operation error)"
	case wcLocProt:
		return "a work request of ours named memory that is not registered (local protection error)"
	case wcFlushed:
		return "the connection ended before this was done"
	case wcMWBind:
		return "the adapter could not bind a memory window (memory window bind error)"
	case wcBadResp:
		return "the peer's adapter answered what is no answer (bad response)"
	case wcLocAccess:
		return "the peer reached for memory that it was not granted (local access error)"
	case wcRemInvReq:
		return "the peer's adapter took a message for invalid: too long for its receive, or malformed (remote invalid request)"
	case wcRemAccess:
		return "the peer refused access to its memory (remote access error)"
	case wcRemOp:
		return "the peer could not carry out a request (remote operation error)"
	case wcRetryExceed:
		return "the peer does not answer any more: the network or the peer's machine is down (retries exceeded)"
	case wcRNRExceed:
		return "the peer has no receive posted (receiver-not-ready retries exceeded)"
	case wcRemAbort:
		return "the peer gave up a request (aborted)"
	case wcFatal:
		return "the adapter is in a fatal state"
	case wcRespTimeout:
		return "the peer did not answer in time (response timeout)"
	}
	return "a work request failed"
}

// localError reports that the adapter may have given up by itself, without hearing of the peer. rxe of Linux 6.12 only flushes then.
func localError(err error) bool {
	var w *WorkError
	var l *LinkError
	return errors.As(err, &w) && wcStatus(w.Status) == wcLocQPOp || errors.As(err, &l) && l.untold
}

func opText(op transport.Op) string {
	switch op {
	case transport.OpSend:
		return "Send"
	case transport.OpSendInv:
		return "Send with Invalidate"
	case transport.OpWrite:
		return "RDMA Write"
	case transport.OpRead:
		return "RDMA Read"
	case transport.OpBind:
		return "Bind"
	case transport.OpInvalidate:
		return "Invalidate"
	case transport.OpRecv:
		return "receive"
	}
	return "request"
}

// WindowError is NewWindow's and Dial's answer on an adapter that has no memory windows, where whole slabs may not be exposed.
type WindowError struct{ Device string }

func (e *WindowError) Error() string {
	return fmt.Sprintf("verbs: the adapter %s has no memory windows of type 2, so the peer could be given all registered memory or none: "+
		"set exposure to whole-slab if the peer is trusted with that, or use another provider (software iWARP works on any network)", e.Device)
}
