package scsi

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/savefile"
)

// luState is what survives a restart of a logical unit. Reservations without APTPL and mode pages that were not saved
// last as long as there is power, and are taken up where Power says that the boot is the same. A restart of the daemon
// is an I_T nexus loss to hosts (SPC-4 section 5.13.5), and a host that was fenced must not be able to write after it.
type luState struct {
	Name         string            `json:"name"`
	Modes        map[string][]byte `json:"modes,omitempty"`   // saved pages by "code.subpage" in hexadecimal
	Current      map[string][]byte `json:"current,omitempty"` // pages that are not as they are saved
	Reservations *reservations     `json:"reservations,omitempty"`
	Power        *powerState       `json:"power,omitempty"`
	Erasure      *erasureNote      `json:"erasure,omitempty"`
}

// writeDurably replaces a file so that after a crash at any point either the old or the new content is there in full.
func writeDurably(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return saveState(path, b)
}

// saveState makes state durable; a test watches when, and fails it.
var saveState = savefile.Replace

func readState(path string, v any) error {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return &damagedError{path, err}
	}
	return nil
}

// damagedError is a file that was read and is no state. Another error is of the reading, and may pass.
type damagedError struct {
	path string
	err  error
}

func (e *damagedError) Error() string {
	return fmt.Sprintf("scsi: %s is not a state file: %v", e.path, e.err)
}

func (e *damagedError) Unwrap() error { return e.err }

func (lu *LogicalUnit) statePathLocked() string {
	key := lu.opt.StateKey
	if key == "" {
		key = hex.EncodeToString(lu.naa)
	}
	return filepath.Join(lu.stateDir, StateFile(key))
}

// StateFile is the name of the state file of a unit with that LUOptions.StateKey.
func StateFile(key string) string { return "lu-" + key + ".json" }

// durable reports whether the unit has somewhere to keep state.
func (lu *LogicalUnit) durable() bool {
	lu.mu.Lock()
	defer lu.mu.Unlock()
	return lu.stateDir != ""
}

// adopt takes the state directory of a target, unless the unit has one, and loads what is there.
func (lu *LogicalUnit) adopt(dir string) error {
	lu.mu.Lock()
	had := lu.erasure
	was, note, err := lu.adoptLocked(dir)
	unknown := lu.stateDir != "" && lu.power.Boot == ""
	erasure := lu.erasure
	lu.mu.Unlock()
	if unknown {
		bootUnknown.Do(func() {
			lu.log.Warn("it is not known which boot this is: each start counts as a loss of power, at which reservations without APTPL and settings that were not saved end; " +
				"let /proc/sys/kernel/random/boot_id be read, or set " + bootEnv + " (in a systemd unit: Environment=" + bootEnv + "=%b)")
		})
	}
	if err == nil && note {
		err = lu.adopted(was)
	}
	if err == nil && erasure != had && lu.erasing() {
		lu.goOn(*erasure)
	}
	return err
}

func (lu *LogicalUnit) adopted(was *powerState) error {
	err := lu.persist()
	if err != nil && was != nil && was.Clean {
		return err
	}
	if err != nil {
		// The note that stays is of another boot, or there is none: a later start takes that for a loss as well. The note of the
		// medium's loss stays until the state has it, by nexus: write takes it away.
		lu.log.Warn("the boot that a volume is served on could not be noted", zap.String("volume", lu.opt.Name), zap.Error(err))
		blockdev.TakeLoss(lu.dev, false)
	}
	return nil
}

// adoptLocked returns the note of power that it found, and whether there is one to be written.
func (lu *LogicalUnit) adoptLocked(dir string) (was *powerState, note bool, err error) {
	if lu.stateDir != "" || lu.opt.NotReady != 0 {
		return nil, false, nil
	}
	if lu.opt.StateDir != "" {
		dir = lu.opt.StateDir
	}
	if dir == "" {
		return nil, false, nil
	}
	if err := savefile.MkdirAll(dir); err != nil {
		return nil, false, err
	}
	lu.stateDir = dir
	var s luState
	if err := readState(lu.statePathLocked(), &s); err != nil {
		lu.stateDir = ""
		return nil, false, err
	}
	powered := s.Power != nil && !lu.opt.Volatile && s.Power.Boot == bootID() && s.Power.Boot != ""
	forgets := lu.takeModesLocked(&s, powered)
	if r := s.Reservations; r != nil && (r.APTPL || powered) {
		if !powered {
			r.Generation = 0 // SPC-4 section 6.15.2: it begins again with power
		}
		lu.pr.Store(r)
	} else if r != nil {
		forgets = forgets || len(r.Regs) > 0
	}
	gaveUp := lu.takeUpLocked(s.Erasure)
	medium, err := blockdev.Identity(lu.dev)
	if err != nil {
		lu.stateDir = ""
		return nil, false, err
	}
	lost := blockdev.Lost(lu.dev) != nil
	note = lu.power.began(s.Power, medium, lu.opt.Volatile, lost) || gaveUp
	lu.takesLoss = lost && !lu.opt.Volatile
	lu.lossOwed.Store(lu.owesLossLocked())
	if forgets {
		// I_T NEXUS LOSS OCCURRED would say that reservations and mode pages are as they were: all are told 29/00 instead.
		lu.power.Heard = nil
	}
	return s.Power, note, nil
}

// takeModesLocked takes up the saved mode pages, and the others too if there was power all the time. It reports whether some
// of those are forgotten.
func (lu *LogicalUnit) takeModesLocked(s *luState, powered bool) (forgets bool) {
	for k := range lu.modes.current {
		if v := s.Modes[modeKey(k)]; len(v) == len(modeMask(k)) {
			lu.modes.saved[k] = v
		}
	}
	lu.revertModesLocked()
	if !powered {
		return len(s.Current) > 0
	}
	for k := range lu.modes.current {
		if v := s.Current[modeKey(k)]; len(v) == len(modeMask(k)) {
			lu.modes.current[k] = v
		}
	}
	lu.applyModesLocked()
	return false
}

// unsavedLocked are the mode pages that are not as they are saved; nil if all are.
func (lu *LogicalUnit) unsavedLocked() map[string][]byte {
	var m map[string][]byte
	for i := range modePages {
		p := &modePages[i]
		k := [2]byte{p.code, p.sub}
		if v := lu.modes.current[k]; v != nil && !bytes.Equal(v, lu.pageValueLocked(p, 3)) {
			if m == nil {
				m = map[string][]byte{}
			}
			m[modeKey(k)] = v // values are replaced, never changed
		}
	}
	return m
}

func modeKey(k [2]byte) string { return hex.EncodeToString(k[:1]) + "." + hex.EncodeToString(k[1:]) }

// persist writes what must survive a restart, as it is now. Writers go one after the other, and readers of the unit do
// not wait for the disk.
func (lu *LogicalUnit) persist() error {
	lu.stateMu.Lock()
	defer lu.stateMu.Unlock()
	return lu.writeLocked(lu.pr.Load())
}

// insist saves until it succeeds or the unit ends, with pauses. pending is set while that is to come. warn hears of the
// first failure, since no later request may come that would save it. The result says whether it is saved, or will be.
func (lu *LogicalUnit) insist(pending *atomic.Bool, save func() error, warn func(error)) bool {
	for wait := settleAgain; ; wait = min(2*wait, noteAgain) {
		pending.Store(false) // what comes from now on is for the next one
		err := save()
		if err == nil {
			return true
		}
		if wait == settleAgain {
			warn(err)
		}
		if pending.Swap(true) {
			return true // the next one has begun, and saves all
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-lu.stop.Done():
			t.Stop()
			pending.Store(false)
			return save() == nil // for the last time
		}
	}
}

// publish makes new reservations durable and then visible. A reservation that a power cut could still take away must
// not refuse a host's command. The old reservations stay in force after an error.
func (lu *LogicalUnit) publish(r *reservations) error {
	lu.stateMu.Lock() // nothing else writes the old ones over the new ones in between
	defer lu.stateMu.Unlock()
	err := lu.writeLocked(r)
	if err == nil {
		lu.pr.Store(r)
		return nil
	}
	// They may be on the disk all the same.
	if lu.writeLocked(lu.pr.Load()) != nil {
		lu.log.Error("a change of persistent reservations was refused because it could not be written down; it may be in force after a restart",
			zap.String("volume", lu.opt.Name), zap.Error(err))
	}
	return err
}

// writeLocked writes the state with r as reservations; stateMu is held.
func (lu *LogicalUnit) writeLocked(r *reservations) error {
	lu.mu.Lock()
	if lu.stateDir == "" {
		lu.mu.Unlock()
		return nil
	}
	s := luState{Name: lu.opt.Name, Modes: map[string][]byte{}}
	for k, v := range lu.modes.saved {
		s.Modes[modeKey(k)] = v
	}
	if r.APTPL || !lu.opt.Volatile && (len(r.Regs) > 0 || r.Generation > 0) {
		s.Reservations = r
	}
	if !lu.opt.Volatile {
		p := lu.power
		s.Power, s.Erasure, s.Current = &p, lu.erasure, lu.unsavedLocked()
		if lu.left {
			s.Erasure = s.Erasure.givenUp()
		}
	}
	path, takes := lu.statePathLocked(), lu.takesLoss
	lu.mu.Unlock()
	if err := writeDurably(path, &s); err != nil {
		return &SenseError{Key: HardwareError, ASC: ASCInternalTargetFailure, Cause: err}
	}
	if takes {
		blockdev.TakeLoss(lu.dev, true)
		lu.mu.Lock()
		lu.takesLoss = false
		lu.mu.Unlock()
	}
	return nil
}
