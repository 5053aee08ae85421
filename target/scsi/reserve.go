package scsi

import (
	"slices"
)

// prType is a persistent reservation type (SPC-4 table 209).
type prType uint8

const (
	prWriteExclusive    prType = 0x1
	prExclusiveAccess   prType = 0x3
	prWriteExclusiveRO  prType = 0x5 // registrants only
	prExclusiveAccessRO prType = 0x6
	prWriteExclusiveAR  prType = 0x7 // all registrants
	prExclusiveAccessAR prType = 0x8
)

func (t prType) valid() bool {
	switch t {
	case prWriteExclusive, prExclusiveAccess, prWriteExclusiveRO, prExclusiveAccessRO, prWriteExclusiveAR, prExclusiveAccessAR:
		return true
	}
	return false
}

func (t prType) allRegistrants() bool { return t == prWriteExclusiveAR || t == prExclusiveAccessAR }
func (t prType) registrants() bool    { return t >= prWriteExclusiveRO }
func (t prType) writeExclusive() bool {
	return t == prWriteExclusive || t == prWriteExclusiveRO || t == prWriteExclusiveAR
}

// nexusID names an I_T nexus whether or not it is connected: what registrations are kept under (SPC-4 section 5.13.7).
type nexusID struct {
	Initiator string // port name: iqn...,i,0xISID, or that of a port of SRP
	Target    string // target device name
	Port      uint16 // relative target port
}

func (n *Nexus) id() nexusID {
	return nexusID{Initiator: n.port, Target: n.target.opt.Name, Port: n.opt.TargetPortGroup}
}

type registration struct {
	nexusID
	Key uint64
	All bool // ALL_TG_PT: as if registered through every target port
}

// reservations is the persistent reservation state of a logical unit. It is never changed once it is published: PERSISTENT
// RESERVE OUT makes a new one, and commands look at it without a lock.
type reservations struct {
	Generation uint32
	APTPL      bool
	Regs       []registration
	Type       prType // 0: no reservation
	Holder     nexusID
}

func (r *reservations) clone() *reservations {
	c := *r
	c.Regs = slices.Clone(r.Regs)
	return &c
}

func (r *reservations) find(id nexusID) int {
	return slices.IndexFunc(r.Regs, func(g registration) bool { return g.nexusID == id })
}

func (r *reservations) registered(id nexusID) bool { return r.find(id) >= 0 }

// holds reports whether id holds the reservation; with an all registrants type every registered nexus does.
func (r *reservations) holds(id nexusID) bool {
	if r.Type == 0 {
		return false
	}
	if r.Type.allRegistrants() {
		return r.registered(id)
	}
	return r.Holder == id
}

// conflicts decides a command by its row's class (SPC-4 section 5.13.1, tables 43 and 44).
func (r *reservations) conflicts(me nexusID, class conflict) bool {
	switch class {
	case conflictReads:
		if r.Type.writeExclusive() {
			return false
		}
	case conflictWrites:
	default:
		return false
	}
	return !r.holds(me) && (!r.Type.registrants() || !r.registered(me))
}

// reserved reports whether the reservation of another nexus, of either kind, stops the command.
func (c *Command) reserved() bool {
	lu, class := c.x.lu, c.x.row.class
	if h := lu.spc2.Load(); h != nil && h != c.x.itl && class != conflictNever && class != conflictOwn {
		return true // SPC-2 section 5.5.1
	}
	r := lu.pr.Load()
	if r.Type == 0 || !r.conflicts(c.x.itl.id, class) {
		return false
	}
	// SPC-4 tables 43 and 44 let two commands through by what they ask for.
	switch c.x.row.op {
	case OpStartStopUnit:
		return !(c.CDB[4]&1 != 0 && c.CDB[4]>>4 == 0)
	case OpPreventAllow:
		return c.CDB[4]&3 != 0
	}
	return true
}

// prEffect is what a PERSISTENT RESERVE OUT does to other nexuses.
type prEffect struct {
	attention map[nexusID]ASC // who is told
	abort     map[nexusID]bool
	released  bool
}

func (e *prEffect) tell(id nexusID, asc ASC) {
	if e.attention == nil {
		e.attention = map[nexusID]ASC{}
	}
	e.attention[id] = asc
}

// release drops the reservation and tells registrants when its type says that they gain by it (SPC-4 5.13.11.2.2).
func (r *reservations) release(by nexusID, e *prEffect) {
	if r.Type.registrants() {
		for _, g := range r.Regs {
			if g.nexusID != by {
				e.tell(g.nexusID, ASCReservationsReleased)
			}
		}
	}
	r.Type, r.Holder = 0, nexusID{}
	e.released = true
}

// unregister removes one registration and what depends on it.
func (r *reservations) unregister(id nexusID, e *prEffect) {
	k := r.find(id)
	if k < 0 {
		return
	}
	held := r.holds(id)
	r.Regs = slices.Delete(r.Regs, k, k+1)
	if held && (!r.Type.allRegistrants() || len(r.Regs) == 0) {
		// SPC-4 section 5.13.11.3: the holder's registration takes the reservation with it.
		r.release(id, e)
	}
}

// register is REGISTER and REGISTER AND IGNORE EXISTING KEY for one nexus.
func (r *reservations) register(id nexusID, key uint64, all bool) {
	if k := r.find(id); k >= 0 {
		r.Regs[k].Key, r.Regs[k].All = key, all
		return
	}
	r.Regs = append(r.Regs, registration{nexusID: id, Key: key, All: all})
}

// preempt is PREEMPT and PREEMPT AND ABORT (SPC-4 section 5.13.11.4). key is the SERVICE ACTION RESERVATION KEY.
func (r *reservations) preempt(by nexusID, key uint64, t prType, e *prEffect) error {
	remove := func(match func(registration) bool) {
		kept := r.Regs[:0]
		for _, g := range r.Regs {
			if g.nexusID != by && match(g) {
				e.tell(g.nexusID, ASCRegistrationsPreempted)
				if e.abort == nil {
					e.abort = map[nexusID]bool{}
				}
				e.abort[g.nexusID] = true
				continue
			}
			kept = append(kept, g)
		}
		r.Regs = kept
	}
	matches := func(g registration) bool { return g.Key == key }
	held := r.Type != 0
	allReg := held && r.Type.allRegistrants()
	switch {
	case allReg && key == 0:
		// All other registrations go and the reservation becomes ours.
		remove(func(registration) bool { return true })
	case allReg, !held:
		if key == 0 {
			return badParam(8)
		}
		if !slices.ContainsFunc(r.Regs, matches) {
			return statusError(StatusReservationConflict)
		}
		remove(matches)
		return nil
	default:
		holder := r.find(r.Holder)
		if holder < 0 || r.Regs[holder].Key != key {
			if key == 0 {
				return badParam(8)
			}
			if !slices.ContainsFunc(r.Regs, matches) {
				return statusError(StatusReservationConflict)
			}
			remove(matches)
			return nil
		}
		remove(matches)
	}
	if !t.valid() {
		return badCDB(2)
	}
	// Those that keep their registration learn that the rules have changed.
	old := r.Type
	r.Type, r.Holder = t, by
	if old != t && old.registrants() {
		for _, g := range r.Regs {
			if g.nexusID != by {
				e.tell(g.nexusID, ASCReservationsReleased)
			}
		}
	}
	return nil
}
