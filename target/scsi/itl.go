package scsi

import (
	"slices"
	"sync"
	"sync/atomic"
)

// itl is what a logical unit keeps for one I_T nexus (SAM-5's I_T_L nexus).
type itl struct {
	nexus *Nexus
	lu    *LogicalUnit // nil for commands that reach no logical unit
	lun   uint16
	id    nexusID
	own   taskSet

	gone    atomic.Bool   // the LUN was taken away
	owed    atomic.Uint32 // what the initiator has still to hear of: owedPower, owedReset, owedLoss
	unknown atomic.Bool   // the LUN has come to mean this unit and the initiator takes it for another; see known.go
	used    atomic.Bool   // the nexus has sent a command to this LUN, whatever unit it was
	change  unknownUnit   // guarded by nexus.known.mu
	waiting atomic.Int32  // unit attentions, so that a command can look without a lock
	mu      sync.Mutex
	ua      [maxAttentions]ASC // guarded by mu, oldest first
	told    bool               // guarded by mu: the loss of power was reported
	toldBy  uint32             // ... by a response before this number
	fence   fence              // guarded by mu
	prevent bool               // guarded by lu.mu: PREVENT ALLOW MEDIUM REMOVAL

	lossTold bool   // guarded by mu: a flush has failed for a loss of the medium
	lossBy   uint32 // ... by a response before this number

	visits []*visit     // guarded by mu: EXTENDED COPY commands of other LUNs that read or write here
	copies []copyRecord // guarded by mu: EXTENDED COPY commands that can still be asked about

	stats stats
}

func (i *itl) set() *taskSet {
	if i.lu != nil && i.lu.opt.SharedTaskSet {
		return &i.lu.tasks
	}
	return &i.own
}

// abortAll aborts every command of the nexus, and its copies from and to the unit.
func (i *itl) abortAll(w *tmfWait, kind abortState) {
	i.abortSet(w, kind)
	if i.lu != nil {
		i.abortVisits(w, kind)
	}
}

// abortSet aborts the commands of the nexus that are in the task set.
func (i *itl) abortSet(w *tmfWait, kind abortState) {
	i.set().abort(w, func(c *Command) abortState {
		if c.x.itl == i {
			return kind
		}
		return abortNone
	})
}

// await has w wait for the commands of the nexus that run now, but for one, and for its copies from and to the unit.
func (i *itl) await(w *tmfWait, but *Command) {
	i.set().await(w, func(c *Command) bool { return c.x.itl == i && c != but })
	i.mu.Lock()
	all := slices.Clone(i.visits)
	i.mu.Unlock()
	for _, v := range all {
		v.home.set().await(w, func(c *Command) bool { return c == v.c && c.x.visit.Load() == v })
	}
}

// attention establishes a unit attention condition (SAM-5 section 5.14) and tells the session, where that can pass it on.
func (i *itl) attention(asc ASC) {
	if i.establish(asc) {
		i.event(asc)
	}
}

// establish does so without telling; false where the condition waits already.
func (i *itl) establish(asc ASC) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := int(i.waiting.Load())
	if asc>>8 == ASCPowerOnOrReset>>8 {
		// SAM-5 section 5.14: a reset event makes the conditions before it meaningless.
		if k := slices.IndexFunc(i.ua[:n], ASC.ofPower); k >= 0 {
			asc = i.ua[k] // it says more than the others, and has not been said yet
		}
		n = 0
	}
	for _, a := range i.ua[:n] {
		if a == asc {
			return false
		}
	}
	if n == maxAttentions {
		copy(i.ua[:], i.ua[1:])
		n--
	}
	i.ua[n] = asc
	i.waiting.Store(int32(n + 1))
	return true
}

// event tells the session of a condition, where it can pass that on.
func (i *itl) event(asc ASC) {
	if i.unknown.Load() {
		return // whatever it is, the initiator would take it to be of another unit
	}
	if i.nexus.opt.Async != nil && asc>>8 != ASCPowerOnOrReset>>8 {
		s := check(UnitAttention, asc)
		i.nexus.opt.Async(AsyncEvent{LUN: EncodeLUN(i.lun), Sense: s.append(nil, i.lu.descriptorSense())})
	}
}

// takeAttention returns the oldest unit attention and clears it.
func (i *itl) takeAttention() (ASC, bool) {
	if i.waiting.Load() == 0 {
		return 0, false
	}
	if i.unknown.Load() {
		return ASCLUNsChanged, true // as often as it takes; the others wait until the initiator knows the unit
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	n := int(i.waiting.Load())
	if n == 0 {
		return 0, false
	}
	asc := i.ua[0]
	copy(i.ua[:], i.ua[1:n])
	i.waiting.Store(int32(n - 1))
	return asc, true
}

// restore establishes a condition again that was taken and not reported. It is older than those that wait.
func (i *itl) restore(asc ASC) {
	if i.unknown.Load() && asc == ASCLUNsChanged {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	n := int(i.waiting.Load())
	for k, a := range i.ua[:n] {
		if a == asc {
			return
		}
		if a>>8 == ASCPowerOnOrReset>>8 && !asc.ofPower() {
			return // a reset since then makes it meaningless
		}
		if a>>8 == ASCPowerOnOrReset>>8 {
			i.ua[k] = asc // it says more than the others
			return
		}
	}
	n = min(n, maxAttentions-1)
	copy(i.ua[1:], i.ua[:n])
	i.ua[0] = asc
	i.waiting.Store(int32(n + 1))
}

// clearAttention forgets one kind of unit attention.
func (i *itl) clearAttention(asc ASC) {
	if i.waiting.Load() == 0 || asc == ASCLUNsChanged && i.unknown.Load() {
		return
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	n := 0
	for _, a := range i.ua[:i.waiting.Load()] {
		if a != asc {
			i.ua[n] = a
			n++
		}
	}
	i.waiting.Store(int32(n))
}
