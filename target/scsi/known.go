package scsi

import "sync"

// A LUN number can come to mean another unit while writes for the first one are on their way: one unit attention stops one
// of them, and the rest would land on a disk that their host does not know. So such a LUN is closed to a nexus that has
// seen the old unit. Each of its commands but INQUIRY, REPORT LUNS and REQUEST SENSE ends with REPORTED LUNS DATA HAS
// CHANGED (SPC-4 annex D.2, 3F/0E), until the initiator has asked INQUIRY since the change and has read the answer, or has
// logged in again. 3F/03 is never said instead: Linux sends an INQUIRY of its own at that, which would open the LUN to
// writes that are for the old unit.

// knownUnits is what an I_T nexus takes its LUNs for.
type knownUnits struct {
	mu    sync.Mutex // taken after Target.mu, before itl.mu
	units map[uint16]unitName
}

// unitName is what tells one logical unit from another: a volume that comes back is the same unit.
type unitName struct{ naa, eui, serial string }

func (lu *LogicalUnit) unitName() unitName {
	return unitName{naa: string(lu.naa), eui: string(lu.eui), serial: lu.serial}
}

// unknownUnit is the state of a LUN that has come to mean another unit; guarded by knownUnits.mu.
type unknownUnit struct {
	since uint32 // responses from this number on were made after the change
	dated bool   // since is set
	asked bool   // an INQUIRY that was sent after the change is answered
	from  uint32 // who has received the response before this number has read that answer
}

// meetLocked decides whether a LUN that comes into a nexus's sight is closed; knownUnits.mu is held.
func (n *Nexus) meetLocked(i *itl) {
	name := i.lu.unitName()
	if was, ok := n.known.units[i.lun]; ok && was != name {
		i.unknown.Store(true)
		i.attention(ASCLUNsChanged)
		return
	} else if ok && i.lu.first(i.id).ofPower() {
		i.first() // it comes back, perhaps without what was written to it
	}
	n.known.units[i.lun] = name
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

// asks reports whether c, an INQUIRY, was sent after the change that closed its LUN: the initiator had a response by then
// that was made after it. One that was under way before says nothing of what the initiator knows.
func (c *Command) asks() bool {
	i := c.x.itl
	if i.lu == nil || !i.unknown.Load() {
		return false
	}
	n := c.Nexus
	n.known.mu.Lock()
	defer n.known.mu.Unlock()
	return i.change.dated && (n.opt.NextResponse == nil || int32(c.Heard-i.change.since) > 0)
}

// answered notes that an INQUIRY of a closed LUN has its response.
func (i *itl) answered() {
	next := i.nexus.nextResponse()
	k := &i.nexus.known
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
		n.known.units[i.lun] = i.lu.unitName()
		i.unknown.Store(false)
	}
	n.known.mu.Unlock()
	if opens {
		i.clearAttention(ASCLUNsChanged)
	}
}

// surprisesLocked reports whether some LUN of the nexus is not what the initiator takes it for; knownUnits.mu is held.
func (n *Nexus) surprisesLocked(now map[uint16]*itl) bool {
	for lun := range n.known.units {
		if i := now[lun]; i == nil || i.unknown.Load() {
			return true
		}
	}
	return false
}
