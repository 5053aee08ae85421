package scsi

import (
	"encoding/binary"
	"encoding/hex"
	"sync"
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/hist"
)

// NexusOptions describes one I_T nexus: a session.
type NexusOptions struct {
	InitiatorName string
	ISID          [6]byte
	// TargetPortGroup is the relative target port identifier; of iSCSI, the portal group tag.
	TargetPortGroup uint16
	// SRP names the ports of a nexus of the SCSI RDMA Protocol, which have no ISID; nil for iSCSI. InitiatorName is then the Name of its Initiator.
	SRP *SRPPorts
	// Transport is "iSCSI", "iSER" or "SRP", for metrics and logs.
	Transport string
	// Memory is what the nexus's commands take buffers from. The device server is the one that calls its Wait.
	Memory *mem.Quota
	// Flusher is flushed behind device requests of the nexus's commands that have ended together (Command.Behind); nil where each mover
	// sends by itself what it is given.
	Flusher blockdev.Flusher
	// Visible says which LUNs the initiator may see; nil means all of them.
	Visible func(lun uint16) bool
	// Async reports asynchronous events; nil where the session has no way to tell. It must not block.
	Async func(AsyncEvent)
	// NextResponse is the number that the session's next response will carry, in the counting of Command.Heard; nil where
	// the session does not count. One that does calls Command.Numbered.
	NextResponse func() uint32
}

// AsyncEvent is a unit attention that an initiator can be told of before it asks (RFC 7143 section 11.9.1, event 0).
type AsyncEvent struct {
	LUN   uint64 // as in Command.LUN
	Sense []byte
}

// Nexus is one I_T nexus.
type Nexus struct {
	target *Target
	opt    NexusOptions
	port   string // initiator port name: iqn...,i,0xISID, or that of a port of SRP
	luns   atomic.Pointer[map[uint16]*itl]
	known  *knownUnits
	absent map[uint16]bool // guarded by known.mu: LUNs that were used once and have not been there since the login
	none   *itl            // for commands that reach no logical unit
	closed atomic.Bool
	access atomic.Uint32 // AccessState of the port's group

	memMu             sync.Mutex
	memFirst, memLast *Command
	memCalled         bool
}

// NewNexus joins an initiator port and a target port. Memory may be nil: then the nexus takes from the target's pool.
func (t *Target) NewNexus(opt NexusOptions) *Nexus {
	n := &Nexus{target: t, opt: opt}
	n.port = opt.InitiatorName
	if opt.SRP == nil {
		n.port += ",i,0x" + hex.EncodeToString(opt.ISID[:])
	}
	if n.opt.Memory == nil {
		n.opt.Memory = t.opt.Memory.Quota(64 << 20)
	}
	n.none = &itl{nexus: n}
	t.recallAgain()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.joinPortLocked(opt.TargetPortGroup, opt.SRP)
	t.alua.addPort(opt.TargetPortGroup)
	n.access.Store(uint32(t.stateOf(opt.TargetPortGroup)))
	t.nexuses[n] = struct{}{}
	n.known = t.knownLocked(n.id())
	n.rebuildLocked(false)
	n.missLocked()
	for _, i := range *n.luns.Load() {
		i.change.login = i.unknown.Load()
		i.first()
	}
	return n
}

// Options is what the nexus was made with.
func (n *Nexus) Options() NexusOptions { return n.opt }

// rebuildLocked brings the LUN map in line with the target's; t.mu is held. It returns what has gone, which the caller gives
// to outOfSight without the lock.
func (n *Nexus) rebuildLocked(tell bool) []*itl {
	old := map[uint16]*itl{}
	if m := n.luns.Load(); m != nil {
		old = *m
	}
	now := make(map[uint16]*itl, len(n.target.luns))
	changed := false
	n.known.mu.Lock()
	defer n.known.mu.Unlock()
	for lun, lu := range n.target.luns {
		if n.opt.Visible != nil && !n.opt.Visible(lun) {
			continue
		}
		if i := old[lun]; i != nil && i.lu == lu {
			now[lun] = i
			continue
		}
		i := &itl{nexus: n, lu: lu, lun: lun, id: n.id()}
		lu.join(i)
		n.meetLocked(i)
		delete(n.absent, lun)
		now[lun] = i
		changed = true
	}
	var gone []*itl
	for lun, i := range old {
		if now[lun] != i {
			i.lu.close(i)
			gone = append(gone, i)
			changed = true
		}
	}
	n.luns.Store(&now)
	if changed && tell {
		// Initiators answer the event by looking at every LUN. Their INQUIRY would open a LUN that is another unit now,
		// or is about to be, to writes for the old one. Commands tell of the change all the same.
		quiet := n.surprisesLocked(now)
		for _, i := range now {
			if i.establish(ASCLUNsChanged) && !quiet {
				i.event(ASCLUNsChanged)
			}
		}
	}
	return gone
}

// DecodeLUN turns a LUN field into a number (SAM-5 section 4.7); false where the form is not one of ours.
func DecodeLUN(f uint64) (uint16, bool) {
	if f<<16 != 0 {
		return 0, false
	}
	b0, b1 := byte(f>>56), byte(f>>48)
	switch b0 >> 6 {
	case 0: // peripheral device addressing, bus 0
		return uint16(b1), b0 == 0
	case 1: // flat space addressing
		return uint16(b0&0x3F)<<8 | uint16(b1), true
	}
	return 0, false
}

// EncodeLUN is the LUN field for a logical unit number, as REPORT LUNS gives it.
func EncodeLUN(lun uint16) uint64 {
	if lun < 256 {
		return uint64(lun) << 48
	}
	return uint64(0x4000|lun) << 48
}

// wellKnownReportLUNs is the LUN of the REPORT LUNS well known logical unit (SAM-5 table 22).
const wellKnownReportLUNs = uint64(0xC101) << 48

// find is the itl of a LUN field, or nil.
func (n *Nexus) find(f uint64) *itl {
	lun, ok := DecodeLUN(f)
	if !ok {
		return nil
	}
	return (*n.luns.Load())[lun]
}

// Execute runs c. It never blocks; c.Mover.Complete is called exactly once, maybe before Execute returns. c is ready:
// new, or after Reset.
func (n *Nexus) Execute(c *Command) {
	c.Nexus = n
	c.bind()
	c.resetExec()
	x := &c.x
	commandRun.Move(&x.run, runStep) // x.mu: nothing else knows the command yet
	x.began, x.kind = hist.Clock(), kindOther
	x.step = stepBegin
	x.itl = n.find(c.LUN)
	if x.itl == nil {
		x.itl = n.none
	}
	x.lu = x.itl.lu
	var err *SenseError
	if x.row, err = lookup(c.CDB); err != nil {
		x.err = err
	}
	if c.Attr == ACA && x.err == nil {
		// SAM-5 section 5.9.3.3: without an ACA condition there is nothing it could be for.
		x.err = check(AbortedCommand, ASCInvalidMessage)
	}
	i := x.itl
	if x.lu != nil && !i.used.Load() {
		i.use()
	}
	set := i.set()
	state := set.add(c, c.Attr, x.row == nil || x.row.traits&anyTime != 0)
	if state == taskNone {
		x.err = statusError(StatusTaskSetFull)
		c.complete()
		return
	}
	// Close and RemoveLUN may have gone through the set before c was in it.
	if n.closed.Load() {
		i.abortAll(nil, abortSilent)
	} else if i.gone.Load() {
		i.abortAll(nil, abortReported)
	}
	if state == taskEnabled {
		c.run(false)
	}
}

// waitMem queues c until memory is free.
func (n *Nexus) waitMem(c *Command) {
	n.memMu.Lock()
	c.x.mu.Lock()
	queued := c.x.memory == memoryQueued
	if !queued {
		commandMemory.Move(&c.x.memory, memoryQueued)
	}
	c.x.mu.Unlock()
	if !queued {
		c.x.memNext = nil
		if n.memLast != nil {
			n.memLast.x.memNext = c
		} else {
			n.memFirst = c
		}
		n.memLast = c
	}
	if !n.memCalled {
		n.memCalled = true
		n.opt.Memory.Wait(n.memFree) // under memMu, so that memFree does not take it back
	}
	n.memMu.Unlock()
}

// memFree continues everything that waits for memory; what still gets none queues again.
func (n *Nexus) memFree() {
	var run *Command
	n.memMu.Lock()
	n.memCalled = false
	c := n.memFirst
	n.memFirst, n.memLast = nil, nil
	if c == nil {
		n.opt.Memory.Wait(nil) // what waited was aborted: give up what was set aside
	}
	tail := &run
	for c != nil {
		next := c.x.memNext
		c.x.memNext = nil
		c.x.mu.Lock()
		commandMemory.Move(&c.x.memory, memoryTold)
		if c.noteLocked() { // else its runner asks next
			// This goroutine is the runner now, so nothing ends the command before its turn.
			*tail = c
			tail = &c.x.memNext
		}
		c.x.mu.Unlock()
		c = next
	}
	n.memMu.Unlock()
	for run != nil {
		c := run
		run = c.x.memNext
		c.x.memNext = nil
		c.run(false)
	}
}

// leaveMem takes c out of the memory queue, before it ends, and gives up what was set aside for it.
func (n *Nexus) leaveMem(c *Command) {
	c.x.mu.Lock()
	waits := c.x.memory == memoryQueued || c.x.memory == memoryTold && c.x.abort != abortNone
	c.x.mu.Unlock()
	if !waits {
		return
	}
	n.memMu.Lock()
	defer n.memMu.Unlock()
	c.x.mu.Lock()
	was := c.x.memory // memFree may have called it out meanwhile
	commandMemory.Move(&c.x.memory, memoryNone)
	c.x.mu.Unlock()
	if was == memoryTold {
		if !n.memCalled {
			n.opt.Memory.Wait(nil) // it may not have asked for what was set aside for it
		}
		return
	}
	var last *Command
	for p := &n.memFirst; *p != nil; {
		if *p == c {
			*p = c.x.memNext
			c.x.memNext = nil
			continue
		}
		last = *p
		p = &(*p).x.memNext
	}
	n.memLast = last
}

// Close ends the nexus: every command of it is aborted silently, and done is called when the last has completed. The
// memory quota stays the session's to close.
func (n *Nexus) Close(done func()) {
	if n.closed.Swap(true) {
		done()
		return
	}
	t := n.target
	t.mu.Lock()
	delete(t.nexuses, n)
	n.known.sessions--
	all := []*itl{n.none}
	for _, i := range *n.luns.Load() {
		i.lu.close(i)
		all = append(all, i)
	}
	t.mu.Unlock()
	w := newWait(func() {
		for _, i := range all[1:] {
			i.lu.nexusLost(i) // once more: the last RESERVE may have come after the first time
			i.lu.closed(i)
		}
		done()
	})
	for _, i := range all {
		i.abortAll(w, abortSilent)
	}
	for _, i := range all[1:] {
		i.lu.nexusLost(i)
	}
	w.release()
}

func be16(b []byte) uint16 { return binary.BigEndian.Uint16(b) }
func be32(b []byte) uint32 { return binary.BigEndian.Uint32(b) }
func be64(b []byte) uint64 { return binary.BigEndian.Uint64(b) }
