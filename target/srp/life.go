package srp

import "github.com/sluice-storage/sluice/internal/state"

// The lives of a session, a channel and a task. Server.mu guards the first, channel.mu the others. ARCHITECTURE.md, section Lives, draws them.

// sessionState says whether channels can join a session.
type sessionState uint8

const (
	// sessionStarting: its first channel makes the nexus.
	sessionStarting sessionState = iota
	// sessionLive: channels may join.
	sessionLive
	// sessionEnding: its last channel has ended, and the nexus closes. It is gone after that.
	sessionEnding
)

var sessionLife = state.New("an SRP session", []string{"starting", "live", "ending"}, state.Next[sessionState]{
	sessionStarting: {sessionLive, sessionEnding},
	sessionLive:     {sessionEnding},
})

// channelState says what a channel may be used for.
type channelState uint8

const (
	// channelLogin: the connection request is not answered.
	channelLogin channelState = iota
	// channelLive: requests are taken.
	channelLive
	// channelDraining: requests are dropped, and SRP_T_LOGOUT is sent when those that run have ended.
	channelDraining
	// channelLeaving: SRP_T_LOGOUT is on its way, and the connection ends behind it.
	channelLeaving
	// channelDead: nothing is sent any more.
	channelDead
)

var channelLife = state.New("an SRP channel", []string{"login", "live", "draining", "leaving", "dead"}, state.Next[channelState]{
	channelLogin:    {channelLive, channelDead},
	channelLive:     {channelDraining, channelLeaving, channelDead},
	channelDraining: {channelLeaving, channelDead},
	channelLeaving:  {channelDead},
})

// taskState says where a request stands between its unit and its response.
type taskState uint8

const (
	// taskFree is a task in the free list.
	taskFree taskState = iota
	// taskTable is not with the device server yet: memory descriptors that do not lie in its unit are fetched.
	taskTable
	// taskRunning is with the device server.
	taskRunning
	// taskLate has its outcome; the response waits for memory of one that has left.
	taskLate
	// taskAnswered: its response is queued, or none is due. Its receive is posted again.
	taskAnswered
)

var taskLife = state.New("an SRP task", []string{"free", "table", "running", "late", "answered"}, state.Next[taskState]{
	taskFree:     {taskTable, taskRunning}, // running: task management
	taskTable:    {taskRunning, taskLate, taskAnswered},
	taskRunning:  {taskLate, taskAnswered},
	taskLate:     {taskAnswered},
	taskAnswered: {taskFree},
})

// moveState says what of a task's data is moved.
type moveState uint8

const (
	// moveNone: nothing is.
	moveNone moveState = iota
	// moveIn: RDMA Writes are queued or under way.
	moveIn
	// moveOut: RDMA Reads are. Where the command is aborted they come home all the same: a connection that lives serves them.
	moveOut
)

var taskMove = state.New("an SRP task's move", []string{"none", "in", "out"}, state.Next[moveState]{
	moveNone: {moveIn, moveOut},
	moveIn:   {moveNone},
	moveOut:  {moveNone},
})
