package scsi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
)

// LUOptions describes a logical unit.
type LUOptions struct {
	Device blockdev.Device
	// Name is the volume's name. With an empty Serial all identity follows from it, so that a volume stays the same to
	// initiators across restarts and moves.
	Name string
	// Serial is the unit serial number, printable ASCII.
	Serial string
	// NAA is the unit's NAA designator, 8 or 16 bytes, and EUI its EUI-64 one. Empty ones follow from Serial, or from Name.
	NAA, EUI []byte
	// StateKey names the unit's state file; empty takes the NAA designator.
	StateKey string
	// NotReady, where it is not zero, says why the unit has no medium: every command that needs one ends with NOT READY and
	// this code, and the unit keeps and reads no state. Device then answers nothing but Geometry.
	NotReady ASC
	// Vendor (8), Product (16) and Revision (4 bytes) appear in INQUIRY data.
	Vendor, Product, Revision string
	ReadOnly                  bool
	Removable                 bool
	// Volatile says that the medium lives in this process: what was written is gone when it ends.
	Volatile bool
	// SharedTaskSet keeps one task set for all I_T nexuses (TST 000b) instead of one each (TST 001b).
	SharedTaskSet bool
	// AllowFormat and AllowSanitize let initiators destroy the volume's content by FORMAT UNIT and SANITIZE.
	AllowFormat, AllowSanitize bool
	// ThinThreshold is the space in bytes below which initiators are warned (thin provisioning soft threshold), 0 for never.
	ThinThreshold int64
	// StateDir as in TargetOptions; empty takes that of the first target the unit is added to.
	StateDir string
	Log      *zap.Logger
}

// Bits of LogicalUnit.flags.
const (
	flagDescriptor  = 1 << iota // D_SENSE
	flagSWP                     // software write protect
	flagNoCache                 // WCE is zero: every write is durable before its status
	flagEjected                 // removable, and the medium is out
	flagFormatting              // FORMAT UNIT runs
	flagSanitizing              // SANITIZE runs
	flagTAS                     // task aborted status
	flagSanitizeBad             // SANITIZE failed and was not repeated yet
	flagFormatBad               // FORMAT UNIT failed and was not repeated yet
	flagNotReady                // LUOptions.NotReady

	// flagsNotReady are those with which commands that need the medium end with NOT READY.
	flagsNotReady = flagEjected | flagFormatting | flagSanitizing | flagNotReady
	// flagsUnerased are those of a medium that may be erased in part.
	flagsUnerased = flagSanitizeBad | flagFormatBad
)

// LogicalUnit is a volume as initiators see it. It may be added to several targets; it is the same unit behind all of
// them (multipath). Its methods may be called by any goroutine.
type LogicalUnit struct {
	opt    LUOptions
	dev    blockdev.Device
	log    *zap.Logger
	geo    atomic.Pointer[blockdev.Geometry]
	flags  atomic.Uint32
	bs     uint32
	shift  uint
	serial string
	naa    []byte
	eui    []byte
	name   unitName
	tasks  taskSet

	low      atomic.Bool   // below the thin provisioning threshold
	lossOwed atomic.Bool   // power.Owed or power.OwedAny has something
	progress atomic.Uint32 // of FORMAT UNIT or SANITIZE, in 65536ths

	modeMu      sync.Mutex // one MODE SELECT at a time; taken before stateMu
	stateMu     sync.Mutex // one writer of the state file; taken before mu, after prMu
	mu          sync.Mutex
	itls        map[*itl]struct{}
	closing     map[*itl]struct{} // of nexuses that have ended or lost sight of the unit, while a command of theirs may still reach the medium
	idle        []chan struct{}   // closed when closing is empty
	stateDir    string
	left        bool // by command, with its medium
	modes       modeState
	power       powerState
	takesLoss   bool // the medium's loss is in power, and not in the state file yet
	clock       timestamp
	erasure     *erasureNote // not changed, but replaced
	gone        luTotals     // of nexuses that have gone
	goneLatency luLatency
	goneSense   [16]int64
	base        luTotals // what LOG SELECT took away

	noting     atomic.Bool    // a note of who has heard of a loss of power is about to be written
	background sync.WaitGroup // erasures and notes
	ended      bool           // guarded by mu: nothing begins in the background any more
	stop       context.Context
	stopNow    context.CancelFunc

	prMu sync.Mutex // one PERSISTENT RESERVE OUT at a time; taken before mu
	pr   atomic.Pointer[reservations]
	spc2 atomic.Pointer[itl] // holder of a RESERVE(6) or (10), which lasts no longer than its nexus
}

// NewLogicalUnit wraps a device, which stays the caller's to close, after the unit has been removed from its targets.
func NewLogicalUnit(opt LUOptions) (*LogicalUnit, error) {
	if opt.Device == nil {
		return nil, errors.New("scsi: a logical unit needs a device")
	}
	g := opt.Device.Geometry()
	if g.Logical != 512 && g.Logical != 4096 {
		return nil, fmt.Errorf("scsi: logical blocks of %d bytes; 512 and 4096 are possible", g.Logical)
	}
	if g.Size < int64(g.Logical) && opt.NotReady == 0 {
		return nil, fmt.Errorf("scsi: volume %q is smaller than one block", opt.Name)
	}
	if n := len(opt.NAA); n != 0 && n != 8 && n != 16 || len(opt.EUI) != 0 && len(opt.EUI) != 8 {
		return nil, fmt.Errorf("scsi: volume %q: an NAA designator has 8 or 16 bytes, an EUI-64 one 8", opt.Name)
	}
	if opt.Vendor == "" {
		opt.Vendor = "SLUICE"
	}
	if opt.Product == "" {
		opt.Product = "Volume"
	}
	if opt.Revision == "" {
		opt.Revision = "0001"
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	lu := &LogicalUnit{opt: opt, dev: opt.Device, log: opt.Log, itls: map[*itl]struct{}{}}
	lu.bs, lu.shift = uint32(g.Logical), uint(bits.TrailingZeros(uint(g.Logical)))
	lu.geo.Store(&g)
	lu.identify()
	lu.set(flagNotReady, opt.NotReady != 0)
	lu.stop, lu.stopNow = context.WithCancel(context.Background())
	lu.pr.Store(&reservations{})
	lu.power.began(nil, "", true, false) // until a state directory says otherwise
	lu.initModes()
	if opt.StateDir != "" {
		if err := lu.adopt(opt.StateDir); err != nil {
			return nil, err
		}
	}
	return lu, nil
}

// identify takes the designators, and derives those that are not given from the serial, or from the name when there is
// none: nothing that a restart or a move to another host changes.
func (lu *LogicalUnit) identify() {
	naa, eui, serial := DeriveIdentity(lu.opt.Name, lu.opt.Serial)
	if len(lu.opt.NAA) != 0 {
		naa = lu.opt.NAA
	}
	if len(lu.opt.EUI) != 0 {
		eui = lu.opt.EUI
	}
	lu.naa, lu.eui, lu.serial = naa, eui, serial
	lu.name = nameOf(naa, eui, serial)
}

// DeriveIdentity makes designators and a serial number of a name, or of a serial number where that is not empty.
func DeriveIdentity(name, serial string) (naa, eui []byte, sn string) {
	seed := "sluice volume\x00" + name
	if serial != "" {
		seed = "sluice serial\x00" + serial
	}
	h := sha256.Sum256([]byte(seed))
	if serial == "" {
		serial = hex.EncodeToString(h[16:26])
	}
	naa, eui = LocalDesignators(h[:16])
	return naa, eui, serial
}

// LocalDesignators makes an NAA and an EUI-64 designator of 16 bytes: locally assigned ones, which are what they are by
// chance or by agreement and claim no registered vendor (SPC-4 section 7.8.6.6.4).
func LocalDesignators(b []byte) (naa, eui []byte) {
	naa, eui = slices.Clone(b[:8]), slices.Clone(b[8:16])
	naa[0] = naa[0]&0x0F | 0x30  // NAA 3h
	eui[0] = eui[0]&^0x01 | 0x02 // locally administered, individual
	return naa, eui
}

// Identity is what initiators know the unit by.
func (lu *LogicalUnit) Identity() (naa, eui []byte) { return lu.naa, lu.eui }

// Name is the volume's name.
func (lu *LogicalUnit) Name() string { return lu.opt.Name }

// Close stops what the unit does by itself, FORMAT UNIT and SANITIZE with IMMED, and waits for it and for the last command
// that may still be with the device, which a medium that hangs can make long. The unit has been removed from its targets;
// the device is the caller's to close afterwards.
func (lu *LogicalUnit) Close() {
	lu.stopNow()
	lu.mu.Lock()
	if len(lu.closing) > 0 {
		ch := make(chan struct{})
		lu.idle = append(lu.idle, ch)
		lu.mu.Unlock()
		<-ch
		lu.mu.Lock()
	}
	lu.ended = true // before the wait: what the last commands began in the background is waited for, and nothing comes after it
	lu.mu.Unlock()
	lu.background.Wait()
	lu.noteClean()
}

// inBackground runs f on a goroutine that Close waits for; false where Close does not wait for more.
func (lu *LogicalUnit) inBackground(f func()) bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	return lu.inBackgroundLocked(f)
}

func (lu *LogicalUnit) inBackgroundLocked(f func()) bool {
	if lu.ended {
		return false
	}
	lu.background.Go(f)
	return true
}

// Serial is the unit serial number.
func (lu *LogicalUnit) Serial() string { return lu.serial }

func (lu *LogicalUnit) has(flag uint32) bool { return lu.flags.Load()&flag != 0 }

func (lu *LogicalUnit) set(flag uint32, on bool) {
	if on {
		lu.flags.Or(flag)
	} else {
		lu.flags.And(^flag)
	}
}

func (lu *LogicalUnit) descriptorSense() bool { return lu != nil && lu.has(flagDescriptor) }

func (lu *LogicalUnit) lba(off int64) uint64 { return uint64(off) >> lu.shift }

func (lu *LogicalUnit) blocks() uint64 { return uint64(lu.geo.Load().Size) >> lu.shift }

func (lu *LogicalUnit) readOnly() bool { return lu.opt.ReadOnly || lu.geo.Load().ReadOnly }

func (lu *LogicalUnit) can(op blockdev.Op) bool { return blockdev.Can(lu.dev, op) }

func (lu *LogicalUnit) thin() bool { return lu.geo.Load().Thin && lu.canUnmap() }

func (lu *LogicalUnit) canUnmap() bool {
	return lu.geo.Load().DiscardUnit > 0 && (lu.can(blockdev.Discard) || lu.can(blockdev.WriteZeroes))
}

func (lu *LogicalUnit) join(i *itl) {
	lu.mu.Lock()
	lu.inheritLocked(i.id)
	lu.itls[i] = struct{}{}
	lu.mu.Unlock()
}

// close is for a nexus that ends, or that sees the unit no longer. The commands of i are remembered until closed. i is
// in one of the two lists at any time, because a fence waits only for what it finds in them.
func (lu *LogicalUnit) close(i *itl) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	if _, ok := lu.itls[i]; ok {
		delete(lu.itls, i)
		lu.gone.add(&i.stats)
		lu.goneLatency.add(&i.stats)
		for k := range lu.goneSense {
			lu.goneSense[k] += i.stats.sense[k].Load()
		}
	}
	if lu.closing == nil {
		lu.closing = make(map[*itl]struct{})
	}
	lu.closing[i] = struct{}{}
}

func (lu *LogicalUnit) closed(i *itl) {
	lu.mu.Lock()
	delete(lu.closing, i)
	if len(lu.closing) == 0 {
		for _, ch := range lu.idle {
			close(ch)
		}
		lu.idle = nil
	}
	lu.mu.Unlock()
}

// each calls f for every nexus, outside of the lock.
func (lu *LogicalUnit) each(f func(*itl)) {
	lu.mu.Lock()
	all := slices.Collect(maps.Keys(lu.itls))
	lu.mu.Unlock()
	for _, i := range all {
		f(i)
	}
}

// all calls here for every nexus and then closing for what close remembers, as they are at one moment, outside of the lock.
func (lu *LogicalUnit) all(here, closing func(*itl)) {
	lu.mu.Lock()
	live, ending := slices.Collect(maps.Keys(lu.itls)), slices.Collect(maps.Keys(lu.closing))
	lu.mu.Unlock()
	for _, i := range live {
		here(i)
	}
	for _, i := range ending {
		closing(i)
	}
}

// abortClosing aborts the commands of a nexus that close remembers. One that lives on and has merely lost sight of the unit
// is told.
func (i *itl) abortClosing(w *tmfWait) {
	kind := abortReported
	if i.nexus.closed.Load() {
		kind = abortSilent
	}
	i.abortAll(w, kind)
}

// attention tells every nexus but one; nil excepts none.
func (lu *LogicalUnit) attention(asc ASC, except *itl) {
	lu.each(func(i *itl) {
		if i != except {
			i.attention(asc)
		}
	})
}

// Refresh takes over a size that the device has changed; initiators learn of it by unit attention.
func (lu *LogicalUnit) Refresh() error {
	if r, ok := lu.dev.(blockdev.Resizable); ok {
		if _, err := r.Refresh(); err != nil {
			return err
		}
	}
	g := lu.dev.Geometry()
	old := lu.geo.Swap(&g)
	if old.Size != g.Size {
		lu.attention(ASCCapacityChanged, nil)
	}
	return nil
}

// MediumCame tells initiators that the unit, which had no medium, has one (SPC-4 section 5.14, NOT READY TO READY CHANGE).
func (lu *LogicalUnit) MediumCame() { lu.attention(ASCMediumMayHaveChanged, nil) }

// nexusLost drops what does not outlive an I_T nexus.
func (lu *LogicalUnit) nexusLost(i *itl) {
	lu.mu.Lock()
	i.prevent = false
	lu.mu.Unlock()
	lu.spc2.CompareAndSwap(i, nil)
}
