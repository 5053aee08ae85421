package owner

import "github.com/sluice-storage/sluice/internal/state"

// The lives of a connection's queue. The connection's lock guards them. ARCHITECTURE.md, section Lives, draws them.

// queueState says what becomes of what is queued.
type queueState uint8

const (
	// queueOpen: it is posted.
	queueOpen queueState = iota
	// queueStopped: nothing is posted any more. Drain hands to the handler what is queued, as not done.
	queueStopped
	// queueOver: Drain has ended, and nothing can be queued.
	queueOver
)

var queueLife = state.New("a connection's queue", []string{"open", "stopped", "over"}, state.Next[queueState]{
	queueOpen:    {queueStopped},
	queueStopped: {queueOver},
})

// posterState says whether a goroutine is in FlushLocked, which lets go of the lock during Post.
type posterState uint8

const (
	// posterNone: the next one that flushes posts.
	posterNone posterState = iota
	// posterThere: one posts, and sees what is queued meanwhile when it has the lock again.
	posterThere
	// posterAgain: another came meanwhile, behind completions that may have made room. The one that posts tries again even where it found
	// the queue full.
	posterAgain
)

var posterLife = state.New("a connection's poster", []string{"none", "there", "again"}, state.Next[posterState]{
	posterNone:  {posterThere},
	posterThere: {posterAgain, posterNone},
	posterAgain: {posterThere, posterNone},
})
