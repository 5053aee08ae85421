package transport

import (
	"errors"
	"fmt"
)

// ErrClosed ends every use of a closed QP, listener or device; errors.Is finds it below a *TerminateError too.
var ErrClosed = errors.New("transport: connection closed")

// ErrLost is found below an ErrClosed that neither side asked for: the adapter, its port or the network failed, and the error says how.
var ErrLost = errors.New("transport: connection lost")

// ErrTooManyReads is Post's answer to a Read beyond Depth.Out.
var ErrTooManyReads = errors.New("transport: more RDMA Reads posted than the connection's depth allows")

// ErrQueueFull is Post's and PostRecv's answer when QPOptions are used up.
var ErrQueueFull = errors.New("transport: work queue full")

// RejectedError is Dial's error when the listener's upper protocol refused; Private is what it said.
type RejectedError struct{ Private []byte }

func (e *RejectedError) Error() string {
	return "transport: the peer refused the connection; is the service at this address an RDMA one?"
}

// Reason says why a QP is closed.
type Reason struct {
	// Err is what the local upper protocol found wrong, nil for an orderly end. A *TerminateError is sent as it is,
	// another error as an unspecified upper-layer one (RFC 5040 section 4.8).
	Err error
	// Cut says that what the peer has not acknowledged must not reach it any more. A Terminate for Err has a moment to leave.
	Cut bool
}

// Layer is the layer a Terminate message blames (RFC 5040 section 4.8).
type Layer uint8

// The layers of the Terminate Control field.
const (
	LayerRDMAP Layer = 0
	LayerDDP   Layer = 1
	LayerLLP   Layer = 2
)

func (l Layer) String() string {
	switch l {
	case LayerRDMAP:
		return "RDMAP"
	case LayerDDP:
		return "DDP"
	case LayerLLP:
		return "MPA"
	}
	return fmt.Sprintf("layer %d", uint8(l))
}

// TerminateError is the reason of a Terminate message, sent or received.
type TerminateError struct {
	Remote bool  // the peer found the error and blames this side
	Layer  Layer // RFC 5040 section 4.8, RFC 5041 section 8, RFC 5044 section 8 and RFC 6581 section 10
	Type   uint8
	Code   uint8
	Clause string // the rule that was broken, as "RFC 5041 section 5.3"
	Detail string // one sentence: what was seen and what was expected
	Raw    []byte // the Terminate's payload as received, at most 64 bytes
}

func (e *TerminateError) Error() string {
	who := "the peer broke"
	if e.Remote {
		who = "the peer says that we broke"
	}
	s := fmt.Sprintf("transport: %s a rule of %s (type %d, code 0x%02x", who, e.Layer, e.Type, e.Code)
	if e.Clause != "" {
		s += ", " + e.Clause
	}
	s += ")"
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Is compares layer, type and code, so that a test can name the error it expects.
func (e *TerminateError) Is(target error) bool {
	if target == ErrClosed {
		return true
	}
	t, ok := target.(*TerminateError)
	return ok && t.Layer == e.Layer && t.Type == e.Type && t.Code == e.Code
}
