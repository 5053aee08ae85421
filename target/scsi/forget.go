package scsi

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// This file ends the state of units that are served no more. The state goes with the medium. A medium that stays is the
// same disk to hosts when it is served again, and what was promised of it holds: fenced hosts stay out, each host hears
// of what was lost, and a medium that is erased in part is NOT READY. The erasure does not go on by itself, because it
// would wipe what has been put in the place of the data since.

// ForgetUnit ends the state of a unit that is served no more, with that LUOptions.StateKey, in a StateDir.
func ForgetUnit(dir, key string, mediumStays bool) error {
	path := filepath.Join(dir, StateFile(key))
	var err error
	if now := time.Now(); mediumStays {
		err = errors.Join(giveUpErasure(path), os.Chtimes(path, now, now)) // the latest of those that TidyUnits finds
	} else {
		err = os.Remove(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func giveUpErasure(path string) error {
	var s luState
	if err := readState(path, &s); err != nil {
		return err
	}
	given := s.Erasure.givenUp()
	if given == s.Erasure {
		return nil
	}
	s.Erasure = given
	return writeDurably(path, &s)
}

// Forget comes before ForgetUnit, because a unit whose medium hangs may be closed after it. It writes nothing any more
// where the medium goes, and no erasure that goes on where the medium stays.
func (lu *LogicalUnit) Forget(mediumStays bool) {
	lu.stateMu.Lock()
	defer lu.stateMu.Unlock()
	lu.mu.Lock()
	defer lu.mu.Unlock()
	if lu.left = mediumStays; !mediumStays {
		lu.stateDir = ""
	}
}

const (
	// maxGone is how many have kept their state of the units that are not known any more, and of the targets that are not served.
	maxGone = 256
	// maxHeld is the same for units whose state keeps hosts from their medium, owes them something, or is as they have set it.
	maxHeld = 4096
)

// TidyUnits removes from a StateDir the states of units that are none of those known, by their LUOptions.StateKey, but for the latest of them: media that
// were deleted by hand do not come back.
func TidyUnits(dir string, known func(key string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var gone []fs.FileInfo
	for _, e := range entries {
		key, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || !strings.HasPrefix(key, "lu-") || known(key[len("lu-"):]) {
			continue
		}
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() {
			gone = append(gone, fi)
		}
	}
	if len(gone) <= maxGone {
		return nil // as ever, and no state is read
	}
	var idle, held []fs.FileInfo
	for _, fi := range gone {
		var s luState
		if readState(filepath.Join(dir, fi.Name()), &s) != nil || s.holds() {
			held = append(held, fi)
		} else {
			idle = append(idle, fi)
		}
	}
	return errors.Join(keepLatest(dir, idle, maxGone), keepLatest(dir, held, maxHeld))
}

// holds reports whether there is more in a state than how hosts are greeted: also a host that has set write protection or no volatile cache
// relies on it.
func (s *luState) holds() bool {
	p := s.Power
	return len(s.Modes) > 0 || len(s.Current) > 0 || s.Erasure != nil || s.Reservations != nil && len(s.Reservations.Regs) > 0 || p != nil && (len(p.Owed) > 0 || p.OwedAny)
}

// keepLatest removes the oldest of a directory's files where there are more than n.
func keepLatest(dir string, files []fs.FileInfo, n int) error {
	slices.SortStableFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, fi := range files[:max(0, len(files)-n)] {
		errs = append(errs, os.Remove(filepath.Join(dir, fi.Name())))
	}
	return errors.Join(errs...)
}
