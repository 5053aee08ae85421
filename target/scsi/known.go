package scsi

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"
	"time"
)

// A LUN number can come to mean another unit while writes for the first one are on their way. A unit attention stops
// only the first of them, and the rest would land on a disk that their host does not know. So such a LUN is closed to a
// nexus that has used the old unit. Each of its commands but INQUIRY, REPORT LUNS and REQUEST SENSE ends with REPORTED
// LUNS DATA HAS CHANGED (SPC-4 annex D.2, 3F/0E), until the initiator has asked for the unit's name (VPD page 83h or
// 80h) since the change and has read the answer.
//
// Standard INQUIRY data is the same for all units here and names none. A login opens nothing: a host that has lost its
// session logs in again under the same name, and sends what is left over without looking. 3F/03 is not said instead,
// because Linux answers it with an INQUIRY of its own, which would open the LUN to writes for the old unit.

// knownUnits is what an I_T nexus takes its LUNs for. It outlives its sessions, and the daemon (knownfile.go).
type knownUnits struct {
	sessions int    // guarded by Target.mu
	last     uint64 // guarded by Target.mu: the login, in the order of the target's

	mu    sync.Mutex // taken after Target.mu, before itl.mu
	units map[uint16]unitName
}

// unitName tells one logical unit from another: a volume that comes back is the same unit. It is a digest of all its designators.
type unitName string

func nameOf(naa, eui []byte, serial string) unitName {
	h := sha256.Sum256(fmt.Appendf(nil, "%x %x %q", naa, eui, serial))
	return unitName(hex.EncodeToString(h[:16]))
}

// knownLocked is what a nexus that logs in takes the LUNs for; t.mu is held. Initiators choose their names themselves,
// so one with many names pushes out none of another's: of the nexuses that have gone, the oldest of the initiator that
// has most is forgotten.
func (t *Target) knownLocked(id nexusID) *knownUnits {
	k := t.known[id]
	if k == nil {
		if len(t.known) >= maxMet {
			t.forgetLocked()
		}
		k = &knownUnits{units: map[uint16]unitName{}}
		t.known[id] = k
	}
	t.logins++
	k.sessions++
	k.last = t.logins
	return k
}

func (t *Target) forgetLocked() {
	names, most := map[string]int{}, 0
	for id, k := range t.known {
		if k.sessions == 0 {
			names[id.host()]++
			most = max(most, names[id.host()])
		}
	}
	var oldest nexusID
	var last uint64
	for id, k := range t.known {
		if k.sessions == 0 && names[id.host()] == most && (last == 0 || k.last < last) {
			oldest, last = id, k.last
		}
	}
	if last != 0 {
		delete(t.known, oldest)
	}
}

// unknownUnit is the state of a LUN that has come to mean another unit; guarded by knownUnits.mu.
type unknownUnit struct {
	since uint32 // responses from this number on were made after the change
	dated bool   // since is set
	login bool   // the change was before the login: all that the session sends was sent after it
	asked bool   // an INQUIRY that was sent after the change is answered
	from  uint32 // who has received the response before this number has read that answer
}

// meetLocked decides whether a LUN that comes into a nexus's sight is closed; Target.mu and knownUnits.mu are held.
func (n *Nexus) meetLocked(i *itl) {
	was, ok := n.known.units[i.lun]
	ok = ok || n.target.unread.Load() || time.Now().Before(n.target.doubt)
	if asc := i.lu.first(i.id); asc == ASCPowerOn || ok && was == i.lu.name && asc.ofPower() {
		i.first() // it lost what was written to it
	}
	i.used.Store(ok)
	if ok && was != i.lu.name {
		i.closeLocked()
	}
}

// closeLocked closes a LUN; knownUnits.mu is held.
func (i *itl) closeLocked() {
	i.unknown.Store(true)
	i.attention(ASCLUNsChanged)
}

// use notes that the nexus takes the LUN for this unit: it sends a command to it for the first time. A nexus that has never
// done so can have nothing under way for it.
func (i *itl) use() {
	n := i.nexus
	next := n.nextResponse()
	n.known.mu.Lock()
	defer n.known.mu.Unlock()
	if i.used.Swap(true) {
		return
	}
	if _, ok := n.known.units[i.lun]; ok {
		return
	}
	n.target.noteKnown(i.lu)
	n.known.units[i.lun] = i.lu.name
	if now := (*n.luns.Load())[i.lun]; now != nil && now.lu.name != i.lu.name {
		// The LUN became another unit just now, and this command is not the last that is for the old one.
		now.used.Store(true)
		now.change.since, now.change.dated = next, true
		now.closeLocked()
	}
}

// date notes for the LUNs that are closed from when on an INQUIRY counts. No lock is held.
func (n *Nexus) date() {
	for _, i := range *n.luns.Load() {
		if !i.unknown.Load() {
			continue
		}
		next := n.nextResponse()
		n.known.mu.Lock()
		if !i.change.dated {
			i.change.since, i.change.dated = next, true
		}
		n.known.mu.Unlock()
	}
}

func (n *Nexus) nextResponse() uint32 {
	if n.opt.NextResponse == nil {
		return 0
	}
	return n.opt.NextResponse()
}

// asks reports whether c, an INQUIRY, was sent after the change that closed its LUN: the initiator had by then a
// response that was made after the change. An INQUIRY that was under way before says nothing of what the initiator
// knows.
func (c *Command) asks() bool {
	i := c.x.itl
	if i.lu == nil || !i.unknown.Load() {
		return false
	}
	n := c.Nexus
	n.known.mu.Lock()
	defer n.known.mu.Unlock()
	return i.change.login || i.change.dated && (n.opt.NextResponse == nil || int32(c.Heard-i.change.since) > 0)
}

// answered notes that an INQUIRY of a closed LUN has its response.
func (i *itl) answered() {
	next := i.nexus.nextResponse()
	k := i.nexus.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if !i.change.asked {
		i.change.asked, i.change.from = true, next
	}
}

// open opens a closed LUN if the initiator had the answer to its INQUIRY when it sent c.
func (i *itl) open(c *Command) {
	n := i.nexus
	n.known.mu.Lock()
	opens := i.unknown.Load() && i.change.asked && (n.opt.NextResponse == nil || int32(c.Heard-i.change.from) >= 0) && (*n.luns.Load())[i.lun] == i
	if opens {
		n.known.units[i.lun] = i.lu.name
		i.unknown.Store(false)
	}
	n.known.mu.Unlock()
	if opens {
		n.target.noteKnown(i.lu)
		i.clearAttention(ASCLUNsChanged)
	}
}

// missLocked notes the LUNs that are not there at a login; Target.mu is held.
func (n *Nexus) missLocked() {
	n.known.mu.Lock()
	defer n.known.mu.Unlock()
	n.absent = map[uint16]bool{}
	for lun := range n.known.units {
		n.absent[lun] = (*n.luns.Load())[lun] == nil
	}
}

// surprisesLocked reports whether some LUN of the nexus is not what the initiator takes it for; knownUnits.mu is held. Those
// that were not there at the login are none: they may never come again.
func (n *Nexus) surprisesLocked(now map[uint16]*itl) bool {
	for lun := range n.known.units {
		if i := now[lun]; i == nil && !n.absent[lun] || i != nil && i.unknown.Load() {
			return true
		}
	}
	return false
}
