package scsi

import (
	"encoding/binary"

	"go.uber.org/zap"
)

// TMF is a task management function, numbered as in RFC 7143 section 11.5.1 and RFC 7144 section 4.2.
type TMF uint8

// Task management functions. TASK REASSIGN (8) is the session's own affair.
const (
	AbortTask       TMF = 1
	AbortTaskSet    TMF = 2
	ClearACA        TMF = 3
	ClearTaskSet    TMF = 4
	LogicalUnitRst  TMF = 5
	TargetWarmReset TMF = 6
	TargetColdReset TMF = 7
	TaskReassign    TMF = 8
	QueryTask       TMF = 9
	QueryTaskSet    TMF = 10
	ITNexusReset    TMF = 11
	QueryAsyncEvent TMF = 12

	// LogicalUnitReset is LogicalUnitRst in full.
	LogicalUnitReset = LogicalUnitRst
)

// TMFResponse is the outcome of a task management function, numbered as in RFC 7143 section 11.6.1 and RFC 7144.
type TMFResponse uint8

// Task management responses.
const (
	FunctionComplete     TMFResponse = 0
	TaskDoesNotExist     TMFResponse = 1
	LUNDoesNotExist      TMFResponse = 2
	TaskStillAllegiant   TMFResponse = 3
	ReassignNotSupported TMFResponse = 4
	TMFNotSupported      TMFResponse = 5
	AuthorizationFailed  TMFResponse = 6
	FunctionSucceeded    TMFResponse = 7
	FunctionRejected     TMFResponse = 255
)

// Manage performs a task management function on the nexus. done is called once, on any goroutine, maybe before Manage
// returns, when the commands that the function aborts have completed: from then on nothing of them reaches the medium or
// the peer's memory.
func (n *Nexus) Manage(fn TMF, lun uint64, refTag uint64, done func(TMFResponse)) {
	answer := func(r TMFResponse) func() { return func() { done(r) } }
	switch fn {
	case TargetWarmReset, TargetColdReset:
		// RFC 7143 section 11.5.1: the session ends after a cold reset, which is the session's part of it.
		n.resetAll(answer(FunctionComplete))
		return
	case ITNexusReset:
		w := newWait(answer(FunctionComplete))
		for _, i := range *n.luns.Load() {
			i.abortAll(w, abortSilent)
			i.lu.nexusLost(i)
			i.attention(ASCNexusLoss)
		}
		w.release()
		return
	case AbortTask, AbortTaskSet, ClearTaskSet, LogicalUnitReset, QueryTask, QueryTaskSet, QueryAsyncEvent:
	default:
		done(TMFNotSupported)
		return
	}
	i := n.find(lun)
	if i == nil {
		done(LUNDoesNotExist)
		return
	}
	if (fn == ClearTaskSet || fn == LogicalUnitReset) && i.unknown.Load() {
		// The unit that it means is behind this number no more, and the commands of other hosts on the one that is are not
		// its affair.
		done(LUNDoesNotExist)
		return
	}
	switch fn {
	case AbortTask:
		w := newWait(answer(FunctionComplete))
		found := i.set().abortTag(w, i, refTag)
		if !found {
			done(TaskDoesNotExist)
			return
		}
		w.release()
	case AbortTaskSet:
		w := newWait(answer(FunctionComplete))
		i.abortSet(w, abortSilent)
		w.release()
	case ClearTaskSet:
		w := newWait(answer(FunctionComplete))
		i.lu.clearTaskSet(i, i.set(), w)
		w.release()
	case LogicalUnitReset:
		i.lu.reset(n, answer(FunctionComplete))
	case QueryTask:
		r := FunctionComplete
		if i.set().holds(func(c *Command) bool { return c.x.itl == i && c.Tag == refTag }) {
			r = FunctionSucceeded
		}
		done(r)
	case QueryTaskSet:
		r := FunctionComplete
		if i.set().holds(func(c *Command) bool { return c.x.itl == i }) {
			r = FunctionSucceeded
		}
		done(r)
	case QueryAsyncEvent:
		r := FunctionComplete
		if i.waiting.Load() > 0 {
			r = FunctionSucceeded
		}
		done(r)
	}
}

// AsyncInfo is the additional response information of QUERY ASYNCHRONOUS EVENT (SAM-5 section 7.9; RFC 7144 section
// 6.4.2): the oldest unit attention of the LUN that waits, without clearing it; zero when there is none.
func (n *Nexus) AsyncInfo(lun uint64) [3]byte {
	var b [3]byte
	i := n.find(lun)
	if i == nil {
		return b
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	w := int(i.waiting.Load())
	if w == 0 {
		return b
	}
	// UADE DEPTH, 01b for one and 10b for more, and the sense key; the additional sense code and its qualifier.
	b[0] = byte(min(w, 2))<<4 | byte(UnitAttention)
	binary.BigEndian.PutUint16(b[1:], uint16(i.ua[0]))
	return b
}

func (s *taskSet) abortTag(w *tmfWait, i *itl, tag uint64) bool {
	found := false
	s.abort(w, func(c *Command) abortState {
		if c.x.itl == i && c.Tag == tag {
			found = true
			return abortSilent
		}
		return abortNone
	})
	return found
}

func (s *taskSet) holds(f func(*Command) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := s.first; c != nil; c = c.x.next {
		if f(c) {
			return true
		}
	}
	return false
}

// clearTaskSet aborts what is in a task set for by (SAM-5 section 7.4). Other nexuses whose commands go are told by
// TASK ABORTED or by a unit attention, as the control mode page says.
func (lu *LogicalUnit) clearTaskSet(by *itl, set *taskSet, w *tmfWait) {
	told := map[*itl]bool{}
	tas := lu.has(flagTAS)
	set.abort(w, func(c *Command) abortState {
		if c.x.itl == by {
			return abortSilent
		}
		if tas {
			return abortReported
		}
		told[c.x.itl] = true
		return abortSilent
	})
	for i := range told {
		i.attention(ASCCommandsCleared)
	}
}

// reset is LOGICAL UNIT RESET (SAM-5 section 6.3.3) by a nexus. The commands of others end with TASK ABORTED where the
// control mode page says so (SAM-5 section 5.6). A host that heard nothing would wait for them for ever.
func (lu *LogicalUnit) reset(by *Nexus, done func()) {
	w := newWait(done)
	tas := lu.has(flagTAS) // as it is before the reset
	lu.all(func(i *itl) {
		kind := abortSilent
		if i.nexus != by {
			if tas {
				kind = abortReported
			}
			i.shut()
		}
		i.attention(ASCBusDeviceReset) // before the abort: what enters the task set behind it is refused
		i.abortAll(w, kind)
		lu.nexusLost(i)
	}, func(i *itl) {
		// An initiator that lost a path resets the unit over another one in order to be sure that no write of the lost
		// one comes later. So the answer waits for those too.
		i.abortClosing(w)
	})
	if lu.resetState() {
		w.left.Add(1)
		noted := func() {
			if err := lu.persist(); err != nil {
				lu.log.Warn("that a reset changed mode pages back could not be noted; a restart brings them back", zap.String("volume", lu.opt.Name), zap.Error(err))
			}
			w.release()
		}
		if !lu.inBackground(noted) {
			w.release()
		}
	}
	w.release()
}

// resetAll is TARGET WARM RESET: every logical unit that the nexus knows is reset.
func (n *Nexus) resetAll(done func()) {
	w := newWait(done)
	for _, i := range *n.luns.Load() {
		if !i.unknown.Load() {
			w.left.Add(1)
			i.lu.reset(n, w.release)
		}
	}
	w.release()
}

// resetState undoes what a reset undoes: unsaved mode pages and reservations of the old kind. It reports whether there is
// something to write down.
func (lu *LogicalUnit) resetState() bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	unsaved := len(lu.unsavedLocked()) > 0
	lu.revertModesLocked()
	lu.spc2.Store(nil)
	return unsaved && lu.stateDir != ""
}
