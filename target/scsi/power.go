package scsi

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
)

// powerState says which nexus has to be told POWER ON OCCURRED (29/01): writes that were acknowledged and not flushed
// may be gone. A host may still need them, and fails its next flush, so it is said only after another boot. After a
// mere restart of the daemon the kernel has the writes, and I_T NEXUS LOSS OCCURRED is said.
//
// A nexus that is not known here, because it is new or because the medium lived in the process that ended, is told
// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED (29/00). That may be true, and every initiator takes it at a login:
// libiscsi's tools give up at any other.
//
// What is owed to an I_T nexus stays owed until the initiator has it, also when the session or the daemon ends in
// between. LogicalUnit.mu guards it.
type powerState struct {
	Boot  string    `json:"boot"`            // of the kernel that the unit was last served on
	Clean bool      `json:"clean,omitempty"` // everything was flushed when it was served last
	Heard []nexusID `json:"heard,omitempty"` // who knows that the unit runs, oldest login first
	Lost  []nexusID `json:"lost,omitempty"`  // who knew, and has not heard of another boot
	// Medium is what was served (blockdev.Identity). What was written to it is not on another one that has taken its place.
	Medium string `json:"medium,omitempty"`
	// Owed are the nexuses that have to hear, by a flush that fails, of writes that the medium did not keep
	// (blockdev.Lost): Linux passes over 29/01, and another nexus's flush is no report to it. OwedAny is for those that
	// wrote before their names could be noted: one flush fails, of any of them.
	Owed    []nexusID `json:"owed,omitempty"`
	OwedAny bool      `json:"owed_any,omitempty"`
	Heirs   []nexusID `json:"owed_heirs,omitempty"` // of Owed, who came after the loss (lossdebt.go)
	// OwedFrom is when the unit was first served with the latest of these debts.
	OwedFrom time.Time `json:"owed_from,omitzero"`
}

// bootEnv says which boot it is where /proc/sys cannot be seen: the packaged units have ProcSubset=pid (systemd.exec(5)).
const bootEnv = "SLUICE_BOOT_ID"

// bootID tells one boot from another; a test boots.
var bootID = func() string { return readBootID("/proc/sys/kernel/random/boot_id") }

// readBootID is the kernel's number, which an environment from before cannot overrule. Without it, it is what the
// service manager says: systemd's specifier %b is the same number without its dashes (systemd.unit(5)).
func readBootID(kernel string) string {
	if b, err := os.ReadFile(kernel); err == nil {
		return strings.TrimSpace(string(b))
	}
	b, err := hex.DecodeString(strings.ReplaceAll(os.Getenv(bootEnv), "-", ""))
	if err != nil || len(b) != 16 || [16]byte(b) == [16]byte{} {
		return "" // nothing can be said: as if each start were a boot
	}
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// bootUnknown says once what follows where the boot is not known.
var bootUnknown sync.Once

// began takes over what was noted when the unit was served last, nil if nothing was. It reports whether the note has to
// be written again; where the note says that all was flushed, that is before a write is taken. What the medium lost
// while there was power (blockdev.Lost) is lost all the same.
func (p *powerState) began(was *powerState, medium string, volatile, lost bool) bool {
	now := powerState{Boot: bootID(), Medium: medium, OwedAny: lost && !volatile}
	if was != nil && !volatile {
		now.Owed, now.OwedAny, now.Heirs, now.OwedFrom = was.Owed, now.OwedAny || was.OwedAny, was.Heirs, was.OwedFrom
		if lost {
			now.Heirs = nil // each is owed this one
			now.Owed = united(was.Owed, was.Lost, was.Heard)
		}
		if at := time.Now(); len(now.Owed) > 0 && (lost || now.OwedFrom.IsZero() || now.OwedFrom.After(at)) {
			now.OwedFrom = at
		}
	}
	lost = lost || was != nil && was.Medium != "" && was.Medium != medium
	switch {
	case was == nil || volatile:
	case !lost && (was.Clean || was.Boot == now.Boot && now.Boot != ""):
		now.Heard, now.Lost = was.Heard, was.Lost
	default:
		now.Lost = append(slices.Clone(was.Lost), was.Heard...)
		now.Lost = latest(now.Lost)
	}
	*p = now
	return !volatile && (was == nil || was.Clean || was.Boot != now.Boot || was.Medium != medium || lost)
}

// united are the nexuses that are in any of the lists.
func united(lists ...[]nexusID) (all []nexusID) {
	for _, id := range slices.Concat(lists...) {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return latest(all)
}

// owesLossLocked says whether a flush has to fail.
func (lu *LogicalUnit) owesLossLocked() bool { return len(lu.power.Owed) > 0 || lu.power.OwedAny }

// owesLoss reports whether a flush of the nexus has to fail for what the medium lost before it was opened.
func (lu *LogicalUnit) owesLoss(id nexusID) bool {
	if !lu.lossOwed.Load() {
		return false
	}
	lu.mu.Lock()
	defer lu.mu.Unlock()
	return lu.power.OwedAny || slices.Contains(lu.power.Owed, id)
}

// toldLoss notes that the initiator has read that a flush of its has failed. Before that it may lose its session with
// the response, and it sends the flush again in the next one.
func (lu *LogicalUnit) toldLoss(id nexusID) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	lu.settleLocked(id)
	lu.noteLocked("who has heard of writes that the medium lost")
}

// first is what a nexus is told when it finds the unit.
func (lu *LogicalUnit) first(id nexusID) ASC {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	switch {
	case slices.Contains(lu.power.Heard, id):
		return ASCNexusLoss
	case slices.Contains(lu.power.Lost, id):
		return ASCPowerOn
	}
	return ASCPowerOnOrReset
}

// ofPower reports whether a condition may be a loss of power, which stays owed until it is heard.
func (asc ASC) ofPower() bool { return asc == ASCPowerOn || asc == ASCPowerOnOrReset }

// first establishes the unit attention condition that a new nexus finds.
func (i *itl) first() {
	asc := i.lu.first(i.id)
	if asc.ofPower() {
		i.owed.Or(owedPower)
	} else {
		i.owed.And(^owedPower)
	}
	i.attention(asc)
}

// heard notes that a nexus has been told. The note is written in the background: if it is lost the report comes twice.
func (lu *LogicalUnit) heard(id nexusID) {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	p := &lu.power
	// New slices: persist reads the old ones.
	p.Heard = append(without(p.Heard, id), id)
	for len(p.Heard) > maxMet {
		// Of those that have gone: such a one is told at its next login what it is told at its first.
		gone := surplus(p.Heard, lu.hereLocked())
		if gone < 0 {
			break // all are here, and would be owed a loss
		}
		p.Heard = slices.Delete(p.Heard, gone, gone+1)
	}
	p.Lost = without(p.Lost, id)
	lu.noteLocked("who has heard of a loss of power")
}

// noteLocked writes the state in the background.
func (lu *LogicalUnit) noteLocked(what string) {
	if lu.stateDir == "" || lu.opt.Volatile || lu.noting.Swap(true) {
		return
	}
	if !lu.inBackgroundLocked(func() {
		lu.insist(&lu.noting, lu.persist, func(err error) {
			lu.log.Warn(what+" could not be noted, and is tried again; they may hear of it again", zap.String("volume", lu.opt.Name), zap.Error(err))
		})
	}) {
		lu.noting.Store(false)
	}
}

// closeFlush bounds the flush of a unit that closes: a medium that hangs must not keep the daemon.
const closeFlush = 5 * time.Second

// noteClean makes everything durable and says so, so that a boot between two starts is no loss.
func (lu *LogicalUnit) noteClean() {
	// After a loss it is not clean: the hosts that have not heard of it have to.
	if lu.opt.Volatile || !lu.durable() || blockdev.Lost(lu.dev) != nil {
		return
	}
	ctx := context.Background()
	err := blockdev.Settle(ctx, lu.dev) // waits as long as the medium gets on
	if errors.Is(err, blockdev.ErrUnsupported) {
		bounded, cancel := context.WithTimeout(ctx, closeFlush)
		defer cancel()
		err = blockdev.Do(bounded, lu.dev, &blockdev.Request{Op: blockdev.Flush})
	}
	if err != nil {
		return
	}
	lu.mu.Lock()
	lu.power.Clean = true
	lu.mu.Unlock()
	if err := lu.persist(); err != nil {
		lu.log.Warn("that everything is flushed could not be noted", zap.String("volume", lu.opt.Name), zap.Error(err))
	}
}
