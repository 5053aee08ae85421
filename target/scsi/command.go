// Package scsi is the device server: logical units, the command table, task management, reservations, ALUA and sense
// data (SAM-5, SPC-4, SBC-3). It knows no socket and has never heard of iSER or TCP: a session gives it a Command and
// a Mover, and the command says what data it wants moved.
//
// # Life of a command
//
//  1. The session takes a *Command from its own free list, fills the request part and calls Nexus.Execute.
//  2. The device server runs the command as a state machine: it takes buffers from Nexus.Memory, submits device requests
//     and calls Mover.DataIn or Mover.DataOut; each of those ends with exactly one call back (Request.Done or
//     Command.Moved), on any goroutine.
//  3. Once the outcome is set the device server calls Mover.Complete, exactly once, also for a command that was aborted:
//     then nothing of the command can reach the medium or the peer's memory any more.
//  4. The Mover sends what SAM wants sent (nothing for an aborted command, unless TAS says so: see Command.Silent), and
//     the session may use the Command again after Command.Reset.
package scsi

import (
	"github.com/sluice-storage/sluice/mem"
)

// Mover moves the data of one command between registered buffers and the initiator's memory. The iSER and the TCP
// session implement it. No method blocks.
type Mover interface {
	// DataIn sends data (medium to initiator), which begins off bytes into the command's Data-In buffer. The spans
	// belong to the mover until c.Moved(err). The device server never moves past c.ExpectIn.
	DataIn(c *Command, off int, data []mem.Span)
	// DataOut fetches data (initiator to medium) from off bytes into the command's Data-Out buffer, unsolicited data that
	// has arrived already included. The spans belong to the mover until c.Moved(err). The device server never asks past
	// c.ExpectOut.
	DataOut(c *Command, off int, data []mem.Span)
	// Complete reports the outcome: the fields of c.Outcome are set. The session may use c again from then on.
	Complete(c *Command)
}

// Canceler is a Mover that can end a DataOut whose data the initiator has not sent yet. The device server calls it for a
// command that was aborted while a move is in progress; the mover then calls c.Moved with an error as soon as nothing
// can touch the spans any more. Without a move in progress it does nothing.
type Canceler interface {
	Cancel(c *Command)
}

// Attr is a task attribute (SAM-5 section 8.9).
type Attr uint8

// Task attributes, in the numbering of RFC 7143 section 11.3.1.
const (
	Untagged Attr = iota
	Simple
	Ordered
	HeadOfQueue
	ACA
)

// MaxCDB is the longest CDB accepted, in bytes; a longer one is refused with INVALID FIELD IN CDB.
const MaxCDB = 260

// Outcome is the part of a Command that the device server fills.
type Outcome struct {
	Status Status
	Sense  []byte // complete sense data, fixed or descriptor, nil without CHECK CONDITION; valid until Reset
	// TransferIn and TransferOut are the bytes the command itself wanted to move: what residuals are counted from
	// (SAM-5 section 5.1; RFC 7143 section 11.4.5).
	TransferIn  int64
	TransferOut int64
	// Last, set with Status, Sense and the counts above before a DataIn, says that this move is the command's last and
	// that the outcome stands: the mover may send the response with the data (phase collapse over TCP, RDMA Write and
	// Send in one Post). Complete is called after Moved as always.
	Last bool
	// Silent says that no response is sent: the task was aborted and TAS is zero (SAM-5 section 5.6).
	Silent bool
}
