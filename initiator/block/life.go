package block

import "github.com/sluice-storage/sluice/internal/state"

// life is where a request is, from its submission to its end, and so who may touch it.
type life uint8

const (
	// idle: the request is the caller's. It has not been submitted, or its end has been told.
	idle life = iota
	// routed: one goroutine looks for a path for the request, or for what becomes of it. It is in no list.
	routed
	// parked: it waits in the Volume's list for a path, or until writes may go again. The Volume's lock guards it.
	parked
	// fenced: it waits there as well, and a command of it may still run at the target, over a path that was lost. It is sent
	// again, or ended as of unknown outcome, only when that command is known to be over.
	fenced
	// queued: it is in a queue of a session, which has commands to make of it. Some may be out. The session's lock guards it.
	queued
	// out: no more commands are made of it, and not all that were made are over. The session's lock guards it.
	out
	// ended: its outcome is settled, and it is in a list whose requests are about to be told of it.
	ended
)

var lives = state.New("a request", []string{"idle", "routed", "parked", "fenced", "queued", "out", "ended"}, state.Next[life]{
	idle:   {routed},
	routed: {parked, fenced, queued, ended, idle},
	parked: {routed, ended},
	fenced: {parked, ended},
	queued: {out, routed, ended},
	out:    {queued, routed, ended},
	ended:  {idle},
})

// to moves the request on.
func (r *request) to(l life) { lives.Move(&r.life, l) }

// step is what the commands of a request do now.
type step uint8

const (
	// stepOwn: what the request asks for.
	stepOwn step = iota
	// stepFlush: what a write of zeroes with FUA has written is made durable, because WRITE SAME has no FUA bit (SBC-3 section 5.45).
	stepFlush
)

var steps = state.New("the step of a request", []string{"own", "flush"}, state.Next[step]{stepOwn: {stepFlush}, stepFlush: {stepOwn}})

// useState says what becomes of a volume's requests that come to a session, whether it lives or not. The session's lock guards it.
type useState uint8

const (
	// useNone: none come. Its login looks at the unit, or it serves no volume.
	useNone useState = iota
	// useOpen: they are sent.
	useOpen
	// useGated: they wait, because the unit has to be asked first what it is.
	useGated
)

var useLife = state.New("the use of a session", []string{"none", "open", "gated"}, state.Next[useState]{
	useNone:  {useOpen},
	useOpen:  {useGated},
	useGated: {useOpen},
})

func (s *session) gateLocked() {
	if s.use == useOpen {
		useLife.Move(&s.use, useGated)
	}
}

func (s *session) ungateLocked() {
	if s.use == useGated {
		useLife.Move(&s.use, useOpen)
	}
}

// taskLife is where a command slot of a session is. The session's lock guards it.
type taskLife uint8

const (
	// taskFree: no command is there.
	taskFree taskLife = iota
	// taskSent: a command is there that the target has not answered.
	taskSent
	// taskAnswered: the target has answered it, or ended it at our request. The connection still holds something of it: a
	// window, or data that is being sent.
	taskAnswered
)

var taskLives = state.New("a command", []string{"free", "sent", "answered"}, state.Next[taskLife]{
	taskFree:     {taskSent},
	taskSent:     {taskAnswered, taskFree}, // to free with the end of the session
	taskAnswered: {taskFree, taskSent},     // to sent when the answer turns out to break the rules, which ends the session
})

// abortion is how far the abort of a command is. The session's lock guards it.
type abortion uint8

const (
	// abortNone: the command is to be carried out.
	abortNone abortion = iota
	// abortWaits: it is to be aborted as soon as the target has room for another task management request.
	abortWaits
	// abortSent: ABORT TASK is out, or has been answered.
	abortSent
)

var abortions = state.New("an abort", []string{"none", "waits", "sent"}, state.Next[abortion]{
	abortNone:  {abortWaits, abortSent},
	abortWaits: {abortSent, abortNone}, // to none with the next command of the slot: an answer came first
	abortSent:  {abortNone},
})

// abortReason is why a command is aborted.
type abortReason uint8

const (
	abortCancelled abortReason = iota // its request was cancelled
	abortLate                         // it took too long
	abortSwept                        // another initiator may have cleared it
)
