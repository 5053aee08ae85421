package scsi

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"
)

// What hosts take the LUNs of a target for outlives the daemon: a LUN that is given to another unit while it is away is closed as
// any other (known.go), for a host begins its new session with what was in flight in the last one. The file is written in the
// background after a nexus has used a LUN for the first time or has looked at another unit; what a kill of the daemon takes away is
// at most the last of that.

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

// recall reads what an earlier daemon has noted. A note that cannot be read keeps nothing from being served: it is set aside, and for
// doubtTime each LUN counts as another than the one that a nexus has used, whatever nexus it is.
func (t *Target) recall() {
	if t.opt.StateDir == "" {
		return
	}
	path := knownPath(t.opt.StateDir, t.opt.Name)
	var note knownNote
	if err := readState(path, &note); err != nil {
		aside := path + ".unreadable"
		note = knownNote{Target: t.opt.Name, Nexuses: []knownNexus{}, Doubt: time.Now().Add(doubtTime)}
		err = errors.Join(err, os.Rename(path, aside), writeDurably(path, &note))
		t.log.Warn("what hosts took the LUNs of a target for cannot be read, and is set aside; for some minutes they have to ask for a LUN's name (INQUIRY) before it takes other commands",
			zap.String("target", t.opt.Name), zap.String("file", aside), zap.Error(err))
	}
	t.doubt = note.Doubt
	for _, n := range note.Nexuses[max(0, len(note.Nexuses)-maxMet):] {
		if n.Units == nil {
			continue
		}
		t.logins++
		t.known[n.nexusID] = &knownUnits{last: t.logins, units: n.Units}
	}
}

// noteKnown has what nexuses take the LUNs for written down; the unit's end waits for that.
func (t *Target) noteKnown(lu *LogicalUnit) {
	if t.opt.StateDir == "" || t.noting.Swap(true) {
		return
	}
	if !lu.inBackground(func() {
		t.noting.Store(false) // what comes from now on is for the next note
		if err := t.saveKnown(); err != nil {
			t.log.Warn("what hosts take the LUNs of a target for could not be noted; should one become another volume while the daemon is away, their writes are not held back",
				zap.String("target", t.opt.Name), zap.Error(err))
		}
	}) {
		t.noting.Store(false)
	}
}

func (t *Target) saveKnown() error {
	t.saveMu.Lock()
	defer t.saveMu.Unlock()
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
	t.mu.Unlock()
	slices.SortFunc(all, func(a, b nexus) int { return cmp.Compare(a.last, b.last) })
	note := knownNote{Target: t.opt.Name, Nexuses: []knownNexus{}, Doubt: t.doubt}
	for _, n := range all {
		n.k.mu.Lock()
		units := maps.Clone(n.k.units)
		n.k.mu.Unlock()
		if len(units) > 0 {
			note.Nexuses = append(note.Nexuses, knownNexus{n.id, units})
		}
	}
	return writeDurably(knownPath(t.opt.StateDir, t.opt.Name), &note)
}

// Forget removes the states of port groups of a target that is served no more, from the StateDir of its TargetOptions: a later target
// of its name begins with those that it is configured with. What hosts took its LUNs for stays: one that made way for another of its
// name a moment ago has hosts whose session recovery finds that and sends what was in flight.
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

// maxGone is how many targets that are not served any more have kept what hosts took their LUNs for.
const maxGone = 256

// Tidy removes what hosts took the LUNs of targets for that are none of those served, but for the latest of them.
func Tidy(dir string, served []string) error {
	is := map[string]bool{}
	for _, target := range served {
		is[filepath.Base(knownPath(dir, target))] = true
	}
	names, err := filepath.Glob(filepath.Join(dir, "nexuses-*.json"))
	if err != nil {
		return err
	}
	var gone []fs.FileInfo
	for _, name := range names {
		if fi, err := os.Lstat(name); err == nil && !is[fi.Name()] {
			gone = append(gone, fi)
		}
	}
	slices.SortFunc(gone, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, fi := range gone[:max(0, len(gone)-maxGone)] {
		errs = append(errs, os.Remove(filepath.Join(dir, fi.Name())))
	}
	return errors.Join(errs...)
}
