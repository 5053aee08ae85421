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
