package rpcserver

import "github.com/sluice-storage/sluice/internal/state"

// slotState is what is moved for the call in a slot. It changes by slots.Move alone, and belongs to the goroutine that has the call, or to the
// connection's lock while the slot is in one of its lists or Reads of it are under way. Who executes the call is another machine (life).
//
//	idle -> arrived                              a message is taken off its receive
//	        arrived -> reading                   its read chunks have memory
//	        arrived -> stalled -> reading        they have to wait for it
//	                              reading -> placed
//	                              reading -> failing      a Read failed, others are still under way
//	        arrived -> placed                    it has no read chunks
//	                   placed -> replying -> idle
//	                   placed <-> unsent         there is no memory for the reply
//	        arrived -> replying                  it is refused by its header
//	any but idle -> idle                         dropped without a reply
type slotState uint8

const (
	// slotIdle: there is no call.
	slotIdle slotState = iota
	// slotArrived: a message has come, and its header is looked at; or a worker asks whether its data is to be fetched at all.
	slotArrived
	// slotStalled: it waits, in rdmaConn.stalled, for memory for its read chunks.
	slotStalled
	// slotReading: RDMA Reads fetch its read chunks.
	slotReading
	// slotFailing: one of them has failed, and the call is dropped when the last is over.
	slotFailing
	// slotPlaced: the call is complete, and the server's until there is a reply.
	slotPlaced
	// slotUnsent: its reply waits, in rdmaConn.unsent, for memory.
	slotUnsent
	// slotReplying: its reply is queued or on its way, and the slot's until the Send completes.
	slotReplying
)

var slots = state.New("a slot of an RDMA connection",
	[]string{"idle", "arrived", "stalled", "reading", "failing", "placed", "unsent", "replying"},
	state.Next[slotState]{
		slotIdle:     {slotArrived},
		slotArrived:  {slotStalled, slotReading, slotPlaced, slotReplying, slotIdle},
		slotStalled:  {slotReading, slotIdle},
		slotReading:  {slotFailing, slotPlaced, slotIdle},
		slotFailing:  {slotIdle},
		slotPlaced:   {slotUnsent, slotReplying, slotIdle},
		slotUnsent:   {slotPlaced, slotIdle},
		slotReplying: {slotIdle},
	})
