package scsi

import (
	"slices"
	"strings"
	"time"
)

// What a medium lost is owed to each I_T nexus that may have written (powerState.Owed), until a flush of its own has
// failed. A host can come back under another name: by a portal that has got another group tag, to another target, or
// with another ISID, as each process that uses libiscsi does. So a nexus that the unit does not know is owed what any
// nexus of its initiator is. The nexuses that were there before it are owed it still, with a session or without, since
// they may be other programs of the host.
//
// A flush that fails once more is no harm; one that claims lost writes is. New names alone stop inheriting after a time
// (heirTime), or a host whose programs all have names of their own would fail flushes for ever.

// host is the name of the nexus's initiator, without its ISID (RFC 7143 section 3.4.6; a name has no comma).
func (id nexusID) host() string {
	name, _, _ := strings.Cut(id.Initiator, ",i,0x")
	return name
}

// hereLocked are the nexuses that have a session.
func (lu *LogicalUnit) hereLocked() map[nexusID]bool {
	here := make(map[nexusID]bool, len(lu.itls))
	for i := range lu.itls {
		here[i.id] = true
	}
	return here
}

// inheritLocked is for a nexus that is about to join.
func (lu *LogicalUnit) inheritLocked(id nexusID) {
	p := &lu.power
	if len(p.Owed) == 0 || time.Since(p.OwedFrom) >= heirTime {
		return
	}
	for _, known := range [...][]nexusID{p.Owed, p.Heard, p.Lost} {
		if slices.Contains(known, id) {
			return
		}
	}
	host := id.host()
	if !slices.ContainsFunc(p.Owed, func(o nexusID) bool { return o.host() == host }) {
		return
	}
	// New slices: persist reads the old ones.
	owed, heirs := append(slices.Clone(p.Owed), id), append(slices.Clone(p.Heirs), id)
	if len(heirs) > maxMet {
		here := lu.hereLocked()
		here[id] = true
		if i := surplus(heirs, here); i >= 0 {
			owed, heirs = without(owed, heirs[i]), slices.Delete(heirs, i, i+1)
		}
	}
	p.Owed, p.Heirs = owed, heirs
}

// settleLocked is for a nexus that has heard.
func (lu *LogicalUnit) settleLocked(id nexusID) {
	p := &lu.power
	p.Owed, p.Heirs = without(p.Owed, id), without(p.Heirs, id)
	p.OwedAny = false
	lu.lossOwed.Store(lu.owesLossLocked())
}

// surplus is the index of the nexus that goes where a list is too long: of those that are not here, the oldest of the
// initiator that has most, or -1 if all are here. Initiators choose their names themselves, and one with many pushes
// out none of another's.
func surplus(l []nexusID, here map[nexusID]bool) int {
	names, most := map[string]int{}, 0
	for _, id := range l {
		if host := id.host(); !here[id] {
			names[host]++
			most = max(most, names[host])
		}
	}
	return slices.IndexFunc(l, func(id nexusID) bool { return !here[id] && names[id.host()] == most })
}

// latest is the list without its surplus.
func latest(l []nexusID) []nexusID {
	for len(l) > maxMet {
		i := surplus(l, nil)
		l = slices.Concat(l[:i], l[i+1:]) // persist reads the old one
	}
	return l
}

// without is a new slice: persist reads the old one.
func without(l []nexusID, id nexusID) []nexusID {
	return slices.DeleteFunc(slices.Clone(l), func(o nexusID) bool { return o == id })
}
