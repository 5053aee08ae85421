package iscsi

import "github.com/sluice-storage/sluice/internal/state"

// The lives of a connection, of its stream and of a task. conn.mu guards each of them. ARCHITECTURE.md, section Lives, draws them.

// connState says what a connection may be used for.
type connState uint8

const (
	// stateLogin: the owner takes one login request at a time.
	stateLogin connState = iota
	// stateHeld: the final login response waits for the session that it replaces, and for memory.
	stateHeld
	// stateFull is full-feature phase.
	stateFull
	// stateEnding: a logout, a reset or a refused login ends it, and no new command is taken.
	stateEnding
	// stateDead: nothing is sent any more.
	stateDead
)

var connLife = state.New("a connection", []string{"login", "held", "full", "ending", "dead"}, state.Next[connState]{
	stateLogin:  {stateHeld, stateEnding, stateDead},
	stateHeld:   {stateLogin, stateFull, stateDead}, // login: the server has refused the session
	stateFull:   {stateEnding, stateDead},
	stateEnding: {stateDead},
})

// endingLocked notes that the connection ends after what is queued.
func (c *conn) endingLocked() {
	if c.state != stateEnding {
		connLife.Move(&c.state, stateEnding)
	}
}

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

// moveState says what of a task's data is moved for the device server.
type moveState uint8

const (
	// moveNone: the device server has asked for nothing yet.
	moveNone moveState = iota
	// moveIn: Data-In is on its way to the initiator.
	moveIn
	// moveOut: Data-Out is awaited.
	moveOut
	// movePlacing: Data-Out is awaited, and the owner puts bytes of a PDU in their place at this moment.
	movePlacing
	// moveCancelled: the command was aborted; RDMA Reads that are under way come home first.
	moveCancelled
	// movePlacingCancelled: the command was aborted; the PDU that the owner puts in place comes to its end first.
	movePlacingCancelled
	// moveEnded: the last move has ended, and another may begin.
	moveEnded
	// moveDropped: a cancelled move has ended; what the initiator still sends is dropped.
	moveDropped
)

var taskMove = state.New("a task's move", []string{"none", "in", "out", "placing", "cancelled", "placing, cancelled", "ended", "dropped"}, state.Next[moveState]{
	moveNone:             {moveIn, moveOut},
	moveIn:               {moveEnded},
	moveOut:              {movePlacing, moveCancelled, moveEnded},
	movePlacing:          {moveOut, movePlacingCancelled, moveEnded}, // ended: with the connection
	moveCancelled:        {moveDropped},
	movePlacingCancelled: {moveCancelled, moveDropped}, // dropped: with the connection
	moveEnded:            {moveIn, moveOut, moveNone},
	moveDropped:          {moveNone},
})

// underWay reports whether the device server waits for Moved.
func (m moveState) underWay() bool { return m != moveNone && m != moveEnded && m != moveDropped }

// cancelled reports whether nothing that the initiator sends is wanted any more.
func (m moveState) cancelled() bool {
	return m == moveCancelled || m == movePlacingCancelled || m == moveDropped
}

// placedLocked ends what destLocked began: the owner touches the move's spans no more.
func (t *task) placedLocked() {
	switch t.move {
	case movePlacing:
		taskMove.Move(&t.move, moveOut)
	case movePlacingCancelled:
		taskMove.Move(&t.move, moveCancelled)
	}
}

// endMoveLocked ends the move; the caller calls Moved without the lock.
func (t *task) endMoveLocked() {
	to := moveEnded
	if t.move.cancelled() {
		to = moveDropped
	}
	taskMove.Move(&t.move, to)
	t.in.data, t.out.data = nil, nil
}

// sequenceState says which Data-Out the initiator still owes. A response waits for the last of it (RFC 7143 section 11.4.2),
// and so does the next R2T.
type sequenceState uint8

const (
	// sequenceNone: it owes none.
	sequenceNone sequenceState = iota
	// sequenceUnsolicited: the rest of the command's own PDU, or unsolicited Data-Out, is still to come.
	sequenceUnsolicited
	// sequenceR2T: an R2T is not answered in full.
	sequenceR2T
)

var taskSequence = state.New("a task's Data-Out", []string{"none", "unsolicited", "R2T"}, state.Next[sequenceState]{
	sequenceNone:        {sequenceUnsolicited, sequenceR2T},
	sequenceUnsolicited: {sequenceNone},
	sequenceR2T:         {sequenceNone},
})

// writeState says who writes to the stream of a TCP connection.
type writeState uint8

const (
	// writeNone: what is queued waits for the next flush.
	writeNone writeState = iota
	// writeInline: the goroutine that flushes writes as much as the socket takes at once.
	writeInline
	// writeApart: the socket took no more, and the writer goroutine waits for it and writes the rest.
	writeApart
)

var writeLife = state.New("a stream's writer", []string{"none", "inline", "apart"}, state.Next[writeState]{
	writeNone:   {writeInline},
	writeInline: {writeNone, writeApart},
	writeApart:  {writeNone},
})
