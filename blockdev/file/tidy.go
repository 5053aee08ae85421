package file

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-storage/sluice/blockdev/internal/redo"
)

// Tidy removes from a directory for notes (Options.Notes) the logs of block devices that are not served any more, by their identities.
// A log that holds a write which a crash interrupted stays, because the device may come back with half of it; what it holds is
// written there then, whatever the device was used for meanwhile. Their paths are returned.
func Tidy(notes string, served func(id string) bool) (unfinished []string, err error) {
	entries, err := os.ReadDir(notes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".redo")
		if !ok || served(id) {
			continue
		}
		name := filepath.Join(notes, e.Name())
		switch pending, err := unfinishedIn(name); {
		case err != nil:
			errs = append(errs, err)
		case pending:
			unfinished = append(unfinished, name)
		default:
			errs = append(errs, os.Remove(name))
		}
	}
	return unfinished, errors.Join(errs...)
}

// unfinishedIn reports whether a log holds a write, of whichever device.
func unfinishedIn(name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close() // only read
	fi, err := f.Stat()
	if err != nil {
		return false, err
	}
	pending, err := redo.New(logStore{f}, "").Pending(int(min(fi.Size()/redo.SlotSize, maxWorkers)))
	if errors.Is(err, redo.ErrForeign) {
		return true, nil
	}
	return pending, err
}
