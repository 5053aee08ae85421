package filelock

import (
	"net/netip"

	"github.com/sluice-storage/sluice/target/filesystem"
)

// sameLocked is the key that the locks of a file are kept by. The device number in a key changes when a disk comes back under
// another name; handles do not, so a handle that has locks goes before the key that its file has now.
func (t *Table) sameLocked(on File) filesystem.FileKey {
	if k, known := t.handles[string(on.Handle)]; known {
		return k
	}
	return on.Key
}

// fileLocked returns the locks of a file that is now asked for by a handle.
func (t *Table) fileLocked(key filesystem.FileKey, handle []byte) *file {
	f := t.files[key]
	if f == nil {
		f = &file{}
		t.files[key] = f
	}
	if _, known := t.handles[string(handle)]; !known {
		t.handles[string(handle)] = key
		f.handles = append(f.handles, string(handle))
	}
	return f
}

func (t *Table) tidyLocked(key filesystem.FileKey) {
	if f := t.files[key]; f != nil && f.empty() {
		delete(t.files, key)
		for _, h := range f.handles {
			delete(t.handles, h)
		}
	}
}

// fitsLocked reports whether a host may have n more of what is bounded: ranges, waiters, shares, and grants that have not ended.
func (t *Table) fitsLocked(addr netip.Addr, n int) bool {
	return n <= 0 || t.used+n <= maxLocks && t.of[addr]+n <= maxHostLocks
}

// chargeLocked counts n more of that for a host.
func (t *Table) chargeLocked(addr netip.Addr, n int) {
	t.used += n
	if t.of[addr] += n; t.of[addr] == 0 {
		delete(t.of, addr)
	}
}

// putLocked gives f other ranges; those that differ are of the client at addr.
func (t *Table) putLocked(f *file, locks []Lock, addr netip.Addr) {
	n := len(locks) - len(f.locks)
	f.locks = locks
	t.count += n
	t.chargeLocked(addr, n)
}

// growLocked is putLocked within the bounds. free is what is given back with it. It reports false, and changes nothing, where the ranges would be
// too many: a range that is split takes room as a new one does. What makes them no more is always done.
func (t *Table) growLocked(f *file, locks []Lock, addr netip.Addr, free int) bool {
	if n := len(locks) - len(f.locks); n > 0 && (len(locks) > maxFileLocks || !t.fitsLocked(addr, n-free)) {
		return false
	}
	t.putLocked(f, locks, addr)
	return true
}
