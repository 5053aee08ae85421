package iscsi

import "github.com/sluice-storage/sluice/internal/state"

// The lives of a task. conn.mu guards each of them. ARCHITECTURE.md, section Lives, draws them.

// taskState says where a task stands between its command and its response.
type taskState uint8

const (
	// taskFree is a task in the free list.
	taskFree taskState = iota
	// taskRunning is with the device server, and has a place in the command window.
	taskRunning
	// taskDeferred has its outcome. The response waits for the initiator's last Data-Out (RFC 7143 section 11.4.2).
	taskDeferred
	// taskAnswered is out of the window: its response is queued, or went with the last Data-In, or none is due.
	taskAnswered
)

var taskLife = state.New("a task", []string{"free", "running", "deferred", "answered"}, state.Next[taskState]{
	taskFree:     {taskRunning},
	taskRunning:  {taskDeferred, taskAnswered},
	taskDeferred: {taskAnswered},
	taskAnswered: {taskFree},
})
