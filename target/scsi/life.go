package scsi

import "github.com/sluice-storage/sluice/internal/state"

// The lives of a command's execution. ARCHITECTURE.md, section Lives, draws them.

// runState says who runs a command. x.mu guards it.
type runState uint8

const (
	// runNone: the session has the command, and no event may come for it.
	runNone runState = iota
	// runStep: a goroutine is in the step function, or will be once the task set lets the command in.
	runStep
	// runAgain: a goroutine is in the step function, and goes round once more for what happened meanwhile.
	runAgain
	// runWait: the command waits; the goroutine that has its next event runs it.
	runWait
	// runSlow: a goroutine of the command's own runs it, and is woken by events.
	runSlow
)

var commandRun = state.New("a command's runner", []string{"none", "step", "again", "wait", "slow"}, state.Next[runState]{
	runNone:  {runStep},
	runStep:  {runAgain, runWait, runSlow, runNone},
	runAgain: {runStep, runSlow, runNone},
	runWait:  {runStep},
	runSlow:  {runNone},
})

// moveState says what is with the mover. x.mu guards it.
type moveState uint8

const (
	// moveNone: the mover has nothing of the command.
	moveNone moveState = iota
	// moveUnderWay: the mover has spans, until Moved.
	moveUnderWay
	// moveCancelled: the command was aborted, and the mover was asked to end the move.
	moveCancelled
	// moveEnded: the mover has called Moved, and the runner has not looked yet.
	moveEnded
)

var commandMove = state.New("a command's move", []string{"none", "under way", "cancelled", "ended"}, state.Next[moveState]{
	moveNone:      {moveUnderWay},
	moveUnderWay:  {moveCancelled, moveEnded},
	moveCancelled: {moveEnded},
	moveEnded:     {moveNone},
})

// pieceState says where a part of a transfer is. It is the runner's.
type pieceState uint8

const (
	// pieceFree: it has no memory.
	pieceFree pieceState = iota
	// pieceFilling: the mover fetches it from the initiator.
	pieceFilling
	// pieceBusy: the device has it.
	pieceBusy
	// pieceReady: it was read, and waits for its turn to be sent.
	pieceReady
	// pieceSending: the mover sends it to the initiator.
	pieceSending
)

var pieceLife = state.New("a piece of a transfer", []string{"free", "filling", "busy", "ready", "sending"}, state.Next[pieceState]{
	pieceFree:    {pieceFilling, pieceBusy, pieceSending}, // sending: parameter data, which no device has
	pieceFilling: {pieceBusy, pieceFree},
	pieceBusy:    {pieceReady, pieceFree},
	pieceReady:   {pieceSending, pieceFree},
	pieceSending: {pieceFree},
})

// ioState says what becomes of a piece's device request. x.mu guards it.
type ioState uint8

const (
	// ioNone: no device has the request.
	ioNone ioState = iota
	// ioUnderWay: a device has it, until Done.
	ioUnderWay
	// ioEnded: the device has called Done, and the runner has not looked yet.
	ioEnded
)

var ioLife = state.New("a device request", []string{"none", "under way", "ended"}, state.Next[ioState]{
	ioNone:     {ioUnderWay},
	ioUnderWay: {ioEnded},
	ioEnded:    {ioNone},
})

// abortState says whether task management has aborted a command, and who is told. The task set's lock and x.mu guard it: both
// are held to change it, one to read it.
type abortState uint8

const (
	// abortNone: the command runs to its end.
	abortNone abortState = iota
	// abortSilent: nothing new is started, and no response is sent. The nexus that asked sent the command, or TAS is zero.
	abortSilent
	// abortReported: nothing new is started, and the status is TASK ABORTED (SAM-5 section 5.6, TAS one).
	abortReported
)

var commandAbort = state.New("a command's abort", []string{"none", "silent", "reported"}, state.Next[abortState]{
	abortNone:     {abortSilent, abortReported},
	abortSilent:   {abortNone}, // with the next use of the command
	abortReported: {abortNone},
})

// memoryState says whether a command waits for memory. x.mu guards it.
type memoryState uint8

const (
	// memoryNone: the command has what it asked for, or has asked for nothing.
	memoryNone memoryState = iota
	// memoryQueued: it is in its nexus's queue.
	memoryQueued
	// memoryTold: it was called out of the queue, and may not have asked since.
	memoryTold
)

var commandMemory = state.New("a command's wait for memory", []string{"none", "queued", "told"}, state.Next[memoryState]{
	memoryNone:   {memoryQueued},
	memoryQueued: {memoryTold, memoryNone}, // none: it ends
	memoryTold:   {memoryQueued, memoryNone},
})

// taskState is a command's membership in a task set, whose lock guards it.
type taskState uint8

const (
	// taskNone: it is in no task set.
	taskNone taskState = iota
	// taskDormant: it waits for older tasks (SAM-5 section 8.7).
	taskDormant
	// taskEnabled: it may run.
	taskEnabled
)

var taskLife = state.New("a task in its set", []string{"none", "dormant", "enabled"}, state.Next[taskState]{
	taskNone:    {taskDormant, taskEnabled},
	taskDormant: {taskEnabled, taskNone}, // none: it was aborted
	taskEnabled: {taskNone},
})
