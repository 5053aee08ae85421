package scsi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// What a medium lost is owed to each I_T nexus that may have written (powerState.Owed), until a flush of its own has failed. A host
// can come back under another name than it had: by a portal that has got another group tag, to another target, or with another ISID, as each
// process that uses libiscsi does. So a nexus that the unit does not know is owed what nexuses of its initiator are that have no session
// now. It hears for all of those; that a later one of the same initiator hears once more is no harm.

// host is the name of the nexus's initiator, without its ISID (RFC 7143 section 3.4.6; a name has no comma).
func (id nexusID) host() string {
	name, _, _ := strings.Cut(id.Initiator, ",i,0x")
	return name
}

// absentLocked says of a nexus whether it is one of that initiator that is owed a flush and has no session.
func (lu *LogicalUnit) absentLocked(host string) func(nexusID) bool {
	here := map[nexusID]bool{}
	for i := range lu.itls {
		here[i.id] = true
	}
	return func(o nexusID) bool { return o.host() == host && !here[o] }
}

// inheritLocked is for a nexus that is about to join.
func (lu *LogicalUnit) inheritLocked(id nexusID) {
	p := &lu.power
	if len(p.Owed) == 0 || slices.Contains(p.Owed, id) || slices.Contains(p.Heard, id) || slices.Contains(p.Lost, id) {
		return
	}
	if !slices.ContainsFunc(p.Owed, lu.absentLocked(id.host())) {
		return
	}
	// New slices: persist reads the old ones.
	owed, heirs := append(slices.Clone(p.Owed), id), append(slices.Clone(p.Heirs), id)
	if len(heirs) > maxMet { // initiators choose their names themselves
		owed, heirs = without(owed, heirs[0]), heirs[1:]
	}
	p.Owed, p.Heirs = owed, heirs
}

// settleLocked is for a nexus that has heard.
func (lu *LogicalUnit) settleLocked(id nexusID) {
	p := &lu.power
	if slices.Contains(p.Heirs, id) {
		absent := lu.absentLocked(id.host())
		p.Owed, p.Heirs = slices.DeleteFunc(slices.Clone(p.Owed), absent), slices.DeleteFunc(slices.Clone(p.Heirs), absent)
	}
	p.Owed, p.Heirs = without(p.Owed, id), without(p.Heirs, id)
	p.OwedAny = false
	lu.lossOwed.Store(lu.owesLossLocked())
}

// without is a new slice: persist reads the old one.
func without(l []nexusID, id nexusID) []nexusID {
	return slices.DeleteFunc(slices.Clone(l), func(o nexusID) bool { return o == id })
}

// ForgetUnit removes the state of a unit that is served no more, with that LUOptions.StateKey, from a StateDir. Where the medium stays,
// so does what is owed to hosts for what it has lost: the medium has no note of that any more, and is the same disk to them when it is
// served again.
func ForgetUnit(dir, key string, mediumStays bool) error {
	path := filepath.Join(dir, StateFile(key))
	var s luState
	if mediumStays && readState(path, &s) == nil && s.Power != nil && (len(s.Power.Owed) > 0 || s.Power.OwedAny) {
		p := s.Power
		return writeDurably(path, &luState{Name: s.Name, Power: &powerState{Medium: p.Medium, Owed: p.Owed, OwedAny: p.OwedAny, Heirs: p.Heirs}})
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
