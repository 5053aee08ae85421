package file

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-storage/sluice/blockdev/internal/redo"
)

// findNotes learns what the medium is, and where what was noted of it lies.
func (d *Device) findNotes(o *Options) error {
	id, shared, err := d.identify()
	if err != nil {
		return err
	}
	d.id = id
	if o.Notes == "" {
		return nil
	}
	if shared && !d.block {
		id = hashed(id + d.path)
	}
	o.Loss = d.takeOver(filepath.Join(o.Notes, id), o.Earlier, ".loss", d.isLoss)
	if d.block {
		o.Log = d.takeOver(filepath.Join(o.Notes, id), o.Earlier, ".redo", d.isLog)
	}
	return nil
}

// takeOver moves to its place what an earlier version has kept under the name of a volume, and returns the place. What cannot be
// moved stays where it is and counts. What is named as this volume comes first: under another name there may be what was left behind
// when the volume was renamed, and a log that is older than the data.
func (d *Device) takeOver(name, earlier, ending string, isOurs func(path string, named bool) bool) string {
	place := name + ending
	if earlier == "" {
		return place
	}
	if _, err := os.Lstat(place); err == nil {
		return place
	}
	dir, named := filepath.Dir(earlier), earlier+ending
	all := []string{named}
	if entries, err := os.ReadDir(dir); err == nil {
		for _, e := range entries {
			if old := filepath.Join(dir, e.Name()); strings.HasSuffix(old, ending) && old != named {
				all = append(all, old)
			}
		}
	}
	for _, old := range all {
		if fi, err := os.Lstat(old); err != nil || !fi.Mode().IsRegular() || !isOurs(old, old == named) {
			continue
		}
		if os.Rename(old, place) != nil {
			return old
		}
		_ = errors.Join(syncDir(place), syncDir(old)) // else the next opening finds it where it was
		return place
	}
	return place
}

// isLoss reports whether a note is of this medium. One that cannot be read is of the volume that it is named after.
func (d *Device) isLoss(path string, named bool) bool {
	b, err := os.ReadFile(path)
	if err != nil || len(b) == 0 {
		return named
	}
	_, of, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(of) == d.id
}

// isLog reports whether a log is of this medium. One that holds no write, or one of a version that did not say to which device, is
// of the volume that it is named after.
func (d *Device) isLog(path string, named bool) bool {
	if fi, err := os.Stat(strings.TrimSuffix(path, ".redo")); err == nil && fi.Mode().IsRegular() {
		return false // it is that file's
	}
	f, err := os.Open(path)
	if err != nil {
		return named
	}
	defer f.Close() // only read
	fi, err := f.Stat()
	if err != nil {
		return named
	}
	l, slots := redo.New(logStore{f}, d.id), int(min(fi.Size()/redo.SlotSize, maxWorkers))
	if owned, err := l.Owned(slots); err == nil && owned {
		return true
	}
	_, err = l.Pending(slots)
	return named && !errors.Is(err, redo.ErrForeign)
}
