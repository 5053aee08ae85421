package rpcserver

import "github.com/sluice-storage/sluice/internal/state"

// life is where a call is between its arrival and its reply: who executes it, or what it waits for. It changes by lives.Move alone, and belongs
// to the goroutine that has the call.
//
//	idle -> arriving -> answered                     refused by its header, its arguments or the Screener
//	        arriving <-> screening                   the data of a stranger's argument is not fetched yet
//	        arriving -> inline | owner | serial | worker -> answered -> idle
//	                    inline -> worker             it would have blocked
//	                    any of the four -> waiting -> worker
//	                    owner | serial | worker -> overtaken
//	any but idle -> idle                             dropped without a reply
type life uint8

const (
	// lifeIdle: the Call is in its pool.
	lifeIdle life = iota
	// lifeArriving: its message, or the data of its argument, is on the way, or it is being classed.
	lifeArriving
	// lifeScreening: a worker asks the program whether the data of its argument is to be fetched at all.
	lifeScreening
	// lifeInline: the goroutine that reads the connection executes it, and must not block.
	lifeInline
	// lifeOwner: it is the RDMA connection's owner's to execute, in its turn; another goroutine takes the connection over if it blocks.
	lifeOwner
	// lifeSerial: it is in the serial queue of its stream, or executed from there; the queue goes on without it if it blocks.
	lifeSerial
	// lifeWorker: it waits for a worker, or is executed by one.
	lifeWorker
	// lifeOvertaken: who executes it has found that its client has repeated it elsewhere, or is gone, so that it must not take effect.
	lifeOvertaken
	// lifeWaiting: it waits for memory for its result, and is executed once more, by a worker, when there is some.
	lifeWaiting
	// lifeAnswered: its reply is made, and the transport's to send.
	lifeAnswered
)

var lives = state.New("an RPC call",
	[]string{"idle", "arriving", "screening", "inline", "owner", "serial", "worker", "overtaken", "waiting", "answered"},
	state.Next[life]{
		lifeIdle:      {lifeArriving},
		lifeArriving:  {lifeScreening, lifeInline, lifeOwner, lifeSerial, lifeWorker, lifeAnswered, lifeIdle},
		lifeScreening: {lifeArriving, lifeAnswered, lifeIdle},
		lifeInline:    {lifeWorker, lifeWaiting, lifeOvertaken, lifeAnswered, lifeIdle},
		lifeOwner:     {lifeWaiting, lifeOvertaken, lifeAnswered, lifeIdle},
		lifeSerial:    {lifeWaiting, lifeOvertaken, lifeAnswered, lifeIdle},
		lifeWorker:    {lifeWaiting, lifeOvertaken, lifeAnswered, lifeIdle},
		lifeOvertaken: {lifeAnswered, lifeIdle},
		lifeWaiting:   {lifeWorker, lifeIdle},
		lifeAnswered:  {lifeIdle},
	})

// writeState says who writes to a stream. outQueue.mu guards it.
type writeState uint8

const (
	// writeNone: what is queued waits for the next flush, or for more.
	writeNone writeState = iota
	// writeInline: the goroutine that flushes writes as much as the socket takes at once.
	writeInline
	// writeApart: the socket took no more, and the flusher waits for it and writes the rest.
	writeApart
	// writeBroken: the connection has failed. What is queued is dropped by the last writer, and what comes by who brings it.
	writeBroken
)

var writeLife = state.New("a stream's writer", []string{"none", "inline", "apart", "broken"}, state.Next[writeState]{
	writeNone:   {writeInline},
	writeInline: {writeNone, writeApart, writeBroken},
	writeApart:  {writeNone, writeBroken},
})
