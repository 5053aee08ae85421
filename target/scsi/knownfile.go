package scsi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
)

// What hosts take the LUNs of a target for outlives the daemon. A LUN that is given to another unit while the daemon is
// down is closed as any other (known.go), because a host begins its new session with what was in flight in the last
// one. The file is written in the background after a nexus has used a LUN for the first time or has looked at another
// unit. A kill of the daemon takes away the last of that at most.

// knownNote is the file's content.
type knownNote struct {
	Target  string       `json:"target"`
	Nexuses []knownNexus `json:"nexuses"`        // the one that has been away longest first
	Doubt   time.Time    `json:"doubt,omitzero"` // until then a LUN may be another to any nexus that is not here
}

type knownNexus struct {
	nexusID
	Units map[uint16]unitName `json:"units"`
}

// targetFile is a file of a target's in a directory for state.
func targetFile(dir, kind, target string) string {
	h := sha256.Sum256([]byte(target))
	return filepath.Join(dir, kind+"-"+hex.EncodeToString(h[:8])+".json")
}

func knownPath(dir, target string) string { return targetFile(dir, "nexuses", target) }

// recall reads what an earlier daemon has noted. A note that cannot be read keeps nothing from being served. A damaged
// note is set aside, and for doubtTime each LUN counts as another than the one that a nexus has used, whichever nexus
// it is. A note that is there and cannot be read now stays. It is read again with each login and before another is
// written, and each LUN counts so until then.
func (t *Target) recall() {
	if t.opt.StateDir == "" {
		return
	}
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if err := t.readKnownLocked(); err != nil {
		t.log.Warn("what hosts took the LUNs of a target for cannot be read now; until it can, they have to ask for a LUN's name (INQUIRY) before it takes other commands",
			zap.String("target", t.opt.Name), zap.Error(err))
	}
}

// recallAgain does so where it could not be done yet.
func (t *Target) recallAgain() {
	if !t.unread.Load() {
		return
	}
	t.saveMu.Lock()
	read := t.unread.Load() && t.readKnownLocked() == nil
	t.saveMu.Unlock()
	if read {
		t.log.Info("what hosts took the LUNs of a target for is read", zap.String("target", t.opt.Name))
		t.warnUnsaved(t.saveKnown()) // with what they did meanwhile
	}
}

// readKnownLocked takes the note in, beside what nexuses have been seen to do meanwhile; saveMu is held.
func (t *Target) readKnownLocked() error {
	path := knownPath(t.opt.StateDir, t.opt.Name)
	var note knownNote
	err := readState(path, &note)
	if damaged := (*damagedError)(nil); errors.As(err, &damaged) {
		note = knownNote{Target: t.opt.Name, Nexuses: []knownNexus{}, Doubt: time.Now().Add(doubtTime)}
		aside, aerr := setAside(path)
		err = errors.Join(err, aerr, writeDurably(path, &note))
		t.log.Warn("what hosts took the LUNs of a target for cannot be read, and is set aside; for some minutes they have to ask for a LUN's name (INQUIRY) before it takes other commands",
			zap.String("target", t.opt.Name), zap.String("file", aside), zap.Error(err))
		err = nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logins = max(t.logins, maxMet) // those that log in before the note is read came after those in it
	if err == nil {
		t.takeKnownLocked(&note)
	}
	t.unread.Store(err != nil) // not before: a nexus that logs in meanwhile finds either
	return err
}

// takeKnownLocked takes in a note; t.mu is held. What a nexus has looked at since is as it is now.
func (t *Target) takeKnownLocked(note *knownNote) {
	// The clock may have been anywhere when that was written.
	if left := min(time.Until(note.Doubt), doubtTime); left > 0 {
		t.doubt = time.Now().Add(left)
	}
	for age, n := range note.Nexuses[max(0, len(note.Nexuses)-maxMet):] {
		if n.Units == nil {
			continue
		}
		k := t.known[n.nexusID]
		if k == nil {
			t.known[n.nexusID] = &knownUnits{last: uint64(age) + 1, units: n.Units}
			continue
		}
		k.mu.Lock()
		for lun, name := range n.Units {
			if _, ok := k.units[lun]; !ok {
				k.units[lun] = name
			}
		}
		k.mu.Unlock()
	}
	for n := len(t.known); n > maxMet; n-- {
		t.forgetLocked()
	}
}

// maxAside is how many files that were set aside are kept.
const maxAside = 16

// setAside gives a file that is damaged another name, and keeps those that were set aside before it.
func setAside(path string) (aside string, err error) {
	aside = path + ".unreadable"
	for k := 2; ; k++ {
		if _, err := os.Lstat(aside); err != nil {
			break // it is free
		}
		aside = fmt.Sprintf("%s.unreadable-%d", path, k)
	}
	if err := os.Rename(path, aside); err != nil {
		return path, err
	}
	now := time.Now()
	return aside, os.Chtimes(aside, now, now) // the latest of those that Tidy finds
}

// Succeed takes over what hosts take the LUNs for from a target of the same name that has been served until now. The
// note may have only a part of that, and what t has read of it is older still. No session of old's is left, and none of
// t's is there yet.
func (t *Target) Succeed(old *Target) {
	old.saveMu.Lock()
	old.succeeded = true
	old.saveMu.Unlock()
	note := old.knownNow()
	t.saveMu.Lock()
	t.mu.Lock()
	if !old.unread.Load() {
		clear(t.known)
		t.unread.Store(false)
		t.doubt = note.Doubt
	}
	for _, n := range note.Nexuses {
		k := t.known[n.nexusID]
		if k == nil {
			k = &knownUnits{units: map[uint16]unitName{}}
			t.known[n.nexusID] = k
		}
		t.logins++
		k.last = t.logins
		maps.Copy(k.units, n.Units)
	}
	if note.Doubt.After(t.doubt) {
		t.doubt = note.Doubt
	}
	t.mu.Unlock()
	t.saveMu.Unlock()
	if t.opt.StateDir != "" {
		t.warnUnsaved(t.saveKnown())
	}
}

// Retire is for a target that is served no more: it notes what it knows for the last time, and a later one of its name has the note.
func (t *Target) Retire() {
	if t.opt.StateDir == "" {
		return
	}
	t.warnUnsaved(t.saveKnown())
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	t.succeeded = true
}

// noteKnown has what nexuses take the LUNs for written down; the unit's end waits for that.
func (t *Target) noteKnown(lu *LogicalUnit) {
	if t.opt.StateDir == "" || t.noting.Swap(true) {
		return
	}
	if !t.noteBy(lu) {
		go t.noteByAnother(lu) // the unit ends, and locks are held here
	}
}

// noteBy has it done by a unit; false where that ends.
func (t *Target) noteBy(lu *LogicalUnit) bool {
	save := func() error {
		err := t.saveKnown()
		if err != nil && t.unread.Load() {
			err = nil // as was said; a login reads it, and saves
		}
		return err
	}
	return lu.inBackground(func() {
		if !lu.insist(&t.noting, save, t.warnUnsaved) {
			t.noteByAnother(lu)
		}
	})
}

// noteByAnother is for a unit that has ended before it could: what nexuses took its LUN for matters most then.
func (t *Target) noteByAnother(but *LogicalUnit) {
	t.noting.Store(true)
	t.mu.Lock()
	units := slices.Collect(maps.Values(t.luns))
	t.mu.Unlock()
	for _, lu := range units {
		if lu != but && t.noteBy(lu) {
			return
		}
	}
	t.noting.Store(false)
	t.warnUnsaved(t.saveKnown())
}

func (t *Target) warnUnsaved(err error) {
	if err != nil {
		t.log.Warn("what hosts take the LUNs of a target for could not be noted; should one become another volume while the daemon is away, their writes are not held back",
			zap.String("target", t.opt.Name), zap.Error(err))
	}
}

func (t *Target) saveKnown() error {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
	if t.succeeded {
		return nil // the note is another's
	}
	if t.unread.Load() {
		if err := t.readKnownLocked(); err != nil {
			return err // what is written would take its place
		}
	}
	note := t.knownNow()
	return writeDurably(knownPath(t.opt.StateDir, t.opt.Name), &note)
}

// knownNow is what there is to note.
func (t *Target) knownNow() knownNote {
	type nexus struct {
		id   nexusID
		k    *knownUnits
		last uint64
	}
	var all []nexus
	t.mu.Lock()
	for id, k := range t.known {
		all = append(all, nexus{id, k, k.last})
	}
	doubt := t.doubt
	t.mu.Unlock()
	slices.SortFunc(all, func(a, b nexus) int { return cmp.Compare(a.last, b.last) })
	note := knownNote{Target: t.opt.Name, Nexuses: []knownNexus{}, Doubt: doubt}
	for _, n := range all {
		n.k.mu.Lock()
		units := maps.Clone(n.k.units)
		n.k.mu.Unlock()
		if len(units) > 0 {
			note.Nexuses = append(note.Nexuses, knownNexus{n.id, units})
		}
	}
	return note
}

// Forget removes the states of port groups of a target that is served no more from the StateDir of its TargetOptions,
// so that a later target of its name begins with those that it is configured with. What hosts took its LUNs for stays:
// hosts of a target that has just made way for another of its name find the new one by session recovery, and send what
// was in flight.
func Forget(dir, target string) error {
	now := time.Now()
	var errs []error
	if err := os.Remove(aluaPath(dir, target)); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	if err := os.Chtimes(knownPath(dir, target), now, now); !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err) // the latest of those that have gone
	}
	return errors.Join(errs...)
}

// Tidy removes what hosts took the LUNs of targets for that are none of those served, and what was set aside, but for the latest of each.
func Tidy(dir string, served []string) error {
	is := map[string]bool{}
	for _, target := range served {
		is[filepath.Base(knownPath(dir, target))] = true
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var gone, aside []fs.FileInfo
	for _, e := range entries {
		name := e.Name()
		if !strings.HasPrefix(name, "nexuses-") || is[name] {
			continue
		}
		switch fi, err := e.Info(); {
		case err != nil: // gone meanwhile
		case strings.HasSuffix(name, ".json"):
			gone = append(gone, fi)
		case strings.Contains(name, ".json.unreadable"):
			aside = append(aside, fi)
		}
	}
	return errors.Join(keepLatest(dir, gone, maxGone), keepLatest(dir, aside, maxAside))
}
