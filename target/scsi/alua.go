package scsi

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/internal/savefile"
)

// AccessState is an asymmetric access state of a target port group (SPC-4 table 307).
type AccessState uint8

// Asymmetric access states, with their wire values.
const (
	ActiveOptimized    AccessState = 0x0
	ActiveNonOptimized AccessState = 0x1
	Standby            AccessState = 0x2
	Unavailable        AccessState = 0x3
	Offline            AccessState = 0xE
	Transitioning      AccessState = 0xF
)

var accessNames = map[AccessState]string{
	ActiveOptimized: "active/optimized", ActiveNonOptimized: "active/non-optimized", Standby: "standby", Unavailable: "unavailable",
	Offline: "offline", Transitioning: "transitioning",
}

func (s AccessState) String() string {
	if n, ok := accessNames[s]; ok {
		return n
	}
	return fmt.Sprintf("access state %Xh", uint8(s))
}

// ParseAccessState reads one of the states that a port group can be put in; empty means active/optimized.
func ParseAccessState(s string) (AccessState, error) {
	if s == "" {
		return ActiveOptimized, nil
	}
	for _, st := range [...]AccessState{ActiveOptimized, ActiveNonOptimized, Standby, Unavailable} {
		if s == st.String() {
			return st, nil
		}
	}
	return 0, fmt.Errorf("scsi: access state %q is none of active/optimized, active/non-optimized, standby, unavailable", s)
}

// ALUAMode is the TPGS field of INQUIRY data (SPC-4 table 143), in another order.
type ALUAMode uint8

// What asymmetric access a target does.
const (
	ALUABoth     ALUAMode = iota // SET TARGET PORT GROUPS works, and states may change by themselves
	ALUAImplicit                 // states change by themselves only
	ALUAExplicit                 // only by SET TARGET PORT GROUPS
	ALUANone                     // all ports are alike; the commands are not offered
)

// ParseALUAMode reads "none", "implicit", "explicit" or "both"; empty means implicit.
func ParseALUAMode(s string) (ALUAMode, error) {
	switch s {
	case "both":
		return ALUABoth, nil
	case "", "implicit":
		return ALUAImplicit, nil
	case "explicit":
		return ALUAExplicit, nil
	case "none":
		return ALUANone, nil
	}
	return 0, fmt.Errorf("scsi: ALUA mode %q is none of none, implicit, explicit, both", s)
}

func (m ALUAMode) tpgs() byte { return [4]byte{3, 1, 2, 0}[m&3] << 4 }

// PortGroup is a target port group: ports that share an access state.
type PortGroup struct {
	ID        uint16
	State     AccessState
	Preferred bool
	// Ports are relative target port identifiers: group tags of portals.
	Ports []uint16
	// Status says how the state came about; TargetOptions need not set it.
	Status GroupStatus
}

// GroupStatus is the STATUS CODE of a target port group (SPC-4 section 6.37).
type GroupStatus uint8

// How a group came into its state.
const (
	GroupConfigured GroupStatus = iota // it was never changed
	GroupExplicit                      // an initiator did, by SET TARGET PORT GROUPS
	GroupImplicit                      // the target did, or its operator
)

// alua is the asymmetric access of a target's ports.
type alua struct {
	saveMu sync.Mutex // one transition at a time; taken before mu
	mu     sync.Mutex
	groups []*portGroup
	path   string
	static bool // groups were configured: ports do not join by themselves
}

type portGroup struct {
	PortGroup
	configured AccessState // what TargetOptions or Configure said last
}

// aluaPath is where a target's port group states lie.
func aluaPath(dir, target string) string {
	return targetFile(dir, "target", target)
}

func (a *alua) init(t *Target) error {
	for _, g := range t.opt.PortGroups {
		if a.find(g.ID) != nil {
			return fmt.Errorf("scsi: two target port groups have the number %d", g.ID)
		}
		for _, p := range g.Ports {
			if a.ofPortLocked(p) != nil {
				return fmt.Errorf("scsi: port %d is in two target port groups", p)
			}
			t.addPortLocked(p)
		}
		g.Ports, g.Status = slices.Clone(g.Ports), GroupConfigured
		a.groups = append(a.groups, &portGroup{PortGroup: g, configured: g.State})
		a.static = true
	}
	if !a.static {
		a.groups = []*portGroup{{PortGroup: PortGroup{ID: 1}}}
	}
	if t.opt.StateDir == "" {
		return nil
	}
	if err := savefile.MkdirAll(t.opt.StateDir); err != nil {
		return err
	}
	a.path = aluaPath(t.opt.StateDir, t.opt.Name)
	var s aluaState
	if err := readState(a.path, &s); err != nil {
		return err
	}
	for id, st := range s.States {
		// What an initiator or an operator set stays, unless the configuration has changed since: its author knew better.
		if g := a.find(id); g != nil && s.Configured[id] == g.configured {
			g.State, g.Status = st, GroupExplicit
			if s.Implicit[id] {
				g.Status = GroupImplicit
			}
		}
	}
	return nil
}

// aluaState is what survives a restart: states that an initiator or the operator set.
type aluaState struct {
	Target string                 `json:"target"`
	States map[uint16]AccessState `json:"states"`
	// Configured is what the configuration said when they were set.
	Configured map[uint16]AccessState `json:"configured"`
	// Implicit are the groups whose state no initiator set.
	Implicit map[uint16]bool `json:"implicit,omitempty"`
}

func (a *alua) save(t *Target) error {
	if a.path == "" {
		return nil
	}
	s := aluaState{Target: t.opt.Name, States: map[uint16]AccessState{}, Configured: map[uint16]AccessState{}, Implicit: map[uint16]bool{}}
	a.mu.Lock()
	for _, g := range a.groups {
		if g.Status != GroupConfigured {
			s.States[g.ID], s.Configured[g.ID] = g.State, g.configured
		}
		if g.Status == GroupImplicit {
			s.Implicit[g.ID] = true
		}
	}
	a.mu.Unlock()
	return writeDurably(a.path, &s)
}

func (a *alua) find(id uint16) *portGroup {
	for _, g := range a.groups {
		if g.ID == id {
			return g
		}
	}
	return nil
}

func (a *alua) ofPortLocked(port uint16) *portGroup {
	for _, g := range a.groups {
		if slices.Contains(g.Ports, port) {
			return g
		}
	}
	return nil
}

// addPort puts a port that no group names into the first one.
func (a *alua) addPort(port uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ofPortLocked(port) == nil {
		a.groups[0].Ports = append(a.groups[0].Ports, port)
	}
}

func (t *Target) groupOf(port uint16) uint16 {
	t.alua.mu.Lock()
	defer t.alua.mu.Unlock()
	if g := t.alua.ofPortLocked(port); g != nil {
		return g.ID
	}
	return 0
}

// PortGroups reports the groups as they are now.
func (t *Target) PortGroups() []PortGroup {
	t.alua.mu.Lock()
	defer t.alua.mu.Unlock()
	var l []PortGroup
	for _, g := range t.alua.groups {
		p := g.PortGroup
		p.Ports = slices.Clone(p.Ports)
		l = append(l, p)
	}
	return l
}

// SetPortGroup changes a group's state as a monitor or an operator wants it, durably: an implicit transition. Any state but
// Offline will do; Transitioning lasts until the next change.
func (t *Target) SetPortGroup(id uint16, s AccessState) error {
	return t.transition(map[uint16]AccessState{id: s}, GroupImplicit, nil)
}

// Configure is SetPortGroup for a state that the configuration says from now on, also after a restart.
func (t *Target) Configure(id uint16, s AccessState) error {
	t.alua.mu.Lock()
	if g := t.alua.find(id); g != nil {
		g.configured = s
	}
	t.alua.mu.Unlock()
	return t.SetPortGroup(id, s)
}

// transition changes access states, durably, and tells every nexus but except (SPC-4 section 5.15.2.3).
func (t *Target) transition(to map[uint16]AccessState, status GroupStatus, except *itl) error {
	t.alua.saveMu.Lock()
	defer t.alua.saveMu.Unlock()
	t.alua.mu.Lock()
	changed := map[uint16]AccessState{}
	for id, s := range to {
		g := t.alua.find(id)
		if g == nil {
			t.alua.mu.Unlock()
			return fmt.Errorf("scsi: %s has no target port group %d", t.opt.Name, id)
		}
		if g.State != s {
			changed[id] = g.State
		}
	}
	for id, s := range to {
		g := t.alua.find(id)
		g.State, g.Status = s, status
	}
	t.alua.mu.Unlock()
	if err := t.alua.save(t); err != nil {
		t.alua.mu.Lock()
		for id, s := range changed {
			t.alua.find(id).State = s
		}
		t.alua.mu.Unlock()
		return err
	}
	if len(changed) == 0 {
		return nil
	}
	t.mu.Lock()
	var tell []*itl
	for n := range t.nexuses {
		n.access.Store(uint32(t.stateOf(n.opt.TargetPortGroup)))
		for _, i := range *n.luns.Load() {
			if i != except {
				tell = append(tell, i)
			}
		}
	}
	t.mu.Unlock()
	for _, i := range tell {
		i.attention(ASCAsymmetricAccessChanged)
	}
	return nil
}

func (t *Target) stateOf(port uint16) AccessState {
	t.alua.mu.Lock()
	defer t.alua.mu.Unlock()
	if g := t.alua.ofPortLocked(port); g != nil {
		return g.State
	}
	return ActiveOptimized
}

// inaccessible is what the access state of the nexus's port makes of a command (SPC-4 section 5.15.2.4).
func (c *Command) inaccessible() error {
	s := AccessState(c.Nexus.access.Load())
	if s == ActiveOptimized || s == ActiveNonOptimized {
		return nil
	}
	r := c.x.row
	asc, ok := ASCALUAUnavailable, r.traits&inUnavail != 0
	switch s {
	case Standby:
		asc, ok = ASCALUAStandby, r.traits&inStandby != 0
	case Transitioning:
		asc = ASCALUATransition
	}
	if ok {
		return nil
	}
	return check(NotReady, asc)
}

// beginReportTPG is REPORT TARGET PORT GROUPS (SPC-4 section 6.37).
func beginReportTPG(c *Command) stepResult {
	t := c.Nexus.target
	if t.opt.ALUA == ALUANone {
		return c.end(badCDBBit(1, 4))
	}
	format := c.CDB[1] >> 5
	if format > 1 {
		return c.end(badCDBBit(1, 7))
	}
	b := append(c.scratch(), 0, 0, 0, 0)
	if format == 1 {
		b = append(b, 0x10, 0, 0, 0) // extended header; how long a transition takes is not known
	}
	t.alua.mu.Lock()
	for _, g := range t.alua.groups {
		st := byte(g.State)
		if g.Preferred {
			st |= 0x80
		}
		// T, O, U, S, AN, AO: a transition of the target's own takes no time, but an operator may want one to be seen.
		b = append(b, st, 0x80|0x40|0x08|0x04|0x02|0x01)
		b = binary.BigEndian.AppendUint16(b, g.ID)
		b = append(b, 0, byte(g.Status), 0, byte(len(g.Ports)))
		for _, p := range g.Ports {
			b = append(b, 0, 0, byte(p>>8), byte(p))
		}
	}
	t.alua.mu.Unlock()
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return c.send(b, int(be32(c.CDB[6:])))
}

// beginReportReferrals is REPORT REFERRALS (SBC-3 section 5.22): one user data segment, the whole medium, which every
// port group reaches.
func beginReportReferrals(c *Command) stepResult {
	lu, t := c.x.lu, c.Nexus.target
	lba := be64(c.CDB[2:])
	if lba >= lu.blocks() {
		return c.end(&SenseError{Key: IllegalRequest, ASC: ASCLBAOutOfRange, HasInfo: true, Info: lba})
	}
	t.alua.mu.Lock()
	b := append(c.scratch(), 0, 0, 0, 0, 0, 0, 0, byte(len(t.alua.groups)))
	b = binary.BigEndian.AppendUint64(b, 0)
	b = binary.BigEndian.AppendUint64(b, lu.blocks()-1)
	for _, g := range t.alua.groups {
		b = append(b, byte(g.State), 0, byte(g.ID>>8), byte(g.ID))
	}
	t.alua.mu.Unlock()
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)-4))
	return c.send(b, int(be32(c.CDB[10:])))
}

// beginSetTPG is SET TARGET PORT GROUPS (SPC-4 section 6.45).
func beginSetTPG(c *Command) stepResult {
	if m := c.Nexus.target.opt.ALUA; m == ALUANone || m == ALUAImplicit {
		return c.end(badCDBBit(1, 4))
	}
	n := int(be32(c.CDB[6:]))
	if n == 0 {
		return stepDone
	}
	if n < 4 || (n-4)%4 != 0 || n > maxParameter {
		return c.end(check(IllegalRequest, ASCParameterListLength))
	}
	return c.asyncParams(n, func(c *Command, list []byte) error {
		t := c.Nexus.target
		to := map[uint16]AccessState{}
		for off := 4; off < len(list); off += 4 {
			s, id := AccessState(list[off]&0x0F), be16(list[off+2:])
			switch s {
			case ActiveOptimized, ActiveNonOptimized, Standby, Unavailable:
			case Offline:
				// SPC-4 section 6.45: only the target itself takes a port offline.
				return badParam(off)
			default:
				return badParam(off)
			}
			t.alua.mu.Lock()
			known := t.alua.find(id) != nil
			t.alua.mu.Unlock()
			if !known {
				return badParam(off + 2)
			}
			to[id] = s
		}
		if err := t.transition(to, GroupExplicit, c.x.itl); err != nil {
			return &SenseError{Key: HardwareError, ASC: ASCSetTPGFailed, Cause: err}
		}
		return nil
	})
}
