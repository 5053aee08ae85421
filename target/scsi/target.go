package scsi

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/mem"
)

// TargetOptions describes a SCSI target device.
type TargetOptions struct {
	// Name is the target device's SCSI name string: the iSCSI name.
	Name string
	Log  *zap.Logger
	// Memory is the pool that nexuses without a quota of their own take from.
	Memory *mem.Pool
	// StateDir holds what survives a restart: reservations with APTPL, saved mode pages, port group states, what hosts take
	// LUNs for. Empty means that nothing does, and that APTPL is refused.
	StateDir string
	// ALUA says which kinds of asymmetric access the target does; the zero value is both.
	ALUA ALUAMode
	// PortGroups are the target port groups (SPC-4 section 5.15). None means one group, number 1, active/optimized, with
	// every port that a nexus comes in by.
	PortGroups []PortGroup
}

// Target is one SCSI target device. Its methods may be called by any goroutine.
type Target struct {
	opt TargetOptions
	log *zap.Logger

	mu      sync.Mutex
	luns    map[uint16]*LogicalUnit
	nexuses map[*Nexus]struct{}
	ports   []uint16           // relative target port identifiers, sorted
	srp     map[uint16]SRPPort // of them, those of SRP
	speaks  map[uint16]byte    // protocol identifiers of those by which a nexus has come
	known   map[nexusID]*knownUnits
	logins  uint64
	doubt   time.Time // what nexuses took the LUNs for was lost, and until then any may be another

	saveMu    sync.Mutex  // one writer or reader of the note of what is known; taken before mu
	succeeded bool        // guarded by saveMu: another target has taken over what is known
	unread    atomic.Bool // it could not be read yet: each LUN may be another; changed under saveMu
	noting    atomic.Bool // a note of it is about to be written

	alua alua
}

// NewTarget makes a target without logical units.
func NewTarget(opt TargetOptions) (*Target, error) {
	if opt.Name == "" || len(opt.Name) > 223 {
		return nil, fmt.Errorf("scsi: a target name has 1 to 223 bytes, this one %d", len(opt.Name))
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	t := &Target{opt: opt, log: opt.Log, luns: map[uint16]*LogicalUnit{}, nexuses: map[*Nexus]struct{}{}, srp: map[uint16]SRPPort{}, speaks: map[uint16]byte{}, known: map[nexusID]*knownUnits{}}
	if err := t.alua.init(t); err != nil {
		return nil, err
	}
	t.recall()
	return t, nil
}

// Name is the target's iSCSI name.
func (t *Target) Name() string { return t.opt.Name }

// AddLUN makes lu reachable as lun; initiators that are connected learn of it by unit attention.
func (t *Target) AddLUN(lun uint16, lu *LogicalUnit) error {
	if lun > maxLUN {
		return fmt.Errorf("scsi: LUN %d is beyond %d", lun, maxLUN)
	}
	if err := lu.adopt(t.opt.StateDir); err != nil {
		return err
	}
	t.mu.Lock()
	if t.luns[lun] != nil {
		t.mu.Unlock()
		return fmt.Errorf("scsi: %s has a LUN %d already", t.opt.Name, lun)
	}
	t.luns[lun] = lu
	outOfSight(t.rebuildAndUnlock())
	return nil
}

// rebuildAndUnlock brings every nexus in line with the map of LUNs; t.mu is held on entry and free on return. It returns
// what has gone.
func (t *Target) rebuildAndUnlock() []*itl {
	var gone []*itl
	all := make([]*Nexus, 0, len(t.nexuses))
	for n := range t.nexuses {
		gone = append(gone, n.rebuildLocked(true)...)
		all = append(all, n)
	}
	t.mu.Unlock()
	for _, n := range all {
		n.date()
	}
	return gone
}

// outOfSight ends what nexuses had with units that they see no longer. It does not wait: a medium that hangs keeps its
// commands, and its unit remembers them until they have completed.
func outOfSight(gone []*itl) {
	for _, i := range gone {
		i.gone.Store(true)
		w := newWait(func() {
			i.lu.nexusLost(i) // once more: the last RESERVE may have come after the first time
			i.lu.closed(i)
		})
		i.abortAll(w, abortReported)
		i.lu.nexusLost(i)
		w.release()
	}
}

// RemoveLUN takes a LUN away, at once. Commands that run on it are aborted; LogicalUnit.Close waits for the last of them. Those
// that come later find no such LUN.
func (t *Target) RemoveLUN(lun uint16) error {
	t.mu.Lock()
	if t.luns[lun] == nil {
		t.mu.Unlock()
		return fmt.Errorf("scsi: %s has no LUN %d", t.opt.Name, lun)
	}
	delete(t.luns, lun)
	outOfSight(t.rebuildAndUnlock())
	return nil
}

// RefreshVisible asks every nexus's Visible again, after an access list has changed. Commands on what an initiator may no
// longer see are aborted.
func (t *Target) RefreshVisible() {
	t.mu.Lock()
	outOfSight(t.rebuildAndUnlock())
}

// LUNs lists the logical unit numbers in order.
func (t *Target) LUNs() []uint16 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var l []uint16
	for n := range t.luns {
		l = append(l, n)
	}
	slices.Sort(l)
	return l
}

// LUN is the logical unit behind a number, or nil.
func (t *Target) LUN(lun uint16) *LogicalUnit {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.luns[lun]
}

// joinPortLocked makes a relative target port known, and what it speaks: a nexus has come by it. An operator may give a group to another protocol.
func (t *Target) joinPortLocked(port uint16, of *SRPPorts) {
	t.addPortLocked(port)
	if of != nil {
		t.srp[port], t.speaks[port] = of.Target, protoSRP
		return
	}
	delete(t.srp, port)
	t.speaks[port] = protoISCSI
}

// speaksLocked reports whether initiator ports of a protocol can come by a target port. A port by which none has come yet may be of any.
func (t *Target) speaksLocked(port uint16, proto byte) bool {
	p, known := t.speaks[port]
	return !known || p == proto
}

// addPortLocked makes a relative target port known. What it speaks is known with the first nexus that comes by it.
func (t *Target) addPortLocked(port uint16) {
	if i, found := slices.BinarySearch(t.ports, port); !found {
		t.ports = slices.Insert(t.ports, i, port)
	}
}
