package file

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Identity implements blockdev.Identified: a block device is known by its own name for itself, where it has one.
func (d *Device) Identity() (string, error) { return d.identity() }

// identity tells this file or block device from another one at its path, also after a restart or a change of name. It is
// what the redo log and the note of a loss are bound to. A copy of a file is another one.
func (d *Device) identity() (string, error) {
	id, _, err := d.identify()
	return id, err
}

// Distinct implements blockdev.Identified.
func (d *Device) Distinct() (bool, error) {
	_, shared, err := d.identify()
	return !shared, err
}

// identify is identity, and reports whether something else may have that identity too: another file where there is no time of birth,
// or what comes to the place of a block device that has no name for itself.
func (d *Device) identify() (id string, shared bool, err error) {
	var st unix.Statx_t
	if err := unix.Statx(d.fd, "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
		return "", false, wrap("status of "+d.path, err) // not as if it were another device, whose log and losses would be forgotten
	}
	what := fmt.Sprintf("file %d", st.Ino)
	switch {
	case d.block:
		what, shared = d.blockIdentity(unix.Mkdev(st.Rdev_major, st.Rdev_minor))
	case st.Mask&unix.STATX_BTIME != 0:
		what = fmt.Sprintf("%s %d.%09d", what, st.Btime.Sec, st.Btime.Nsec)
	default:
		shared = true
	}
	return hashed(what), shared, nil
}

func hashed(what string) string {
	h := sha256.Sum256([]byte(what))
	return hex.EncodeToString(h[:16])
}

// blockIdentity is the device's own name for itself, and the path where it has none.
func (d *Device) blockIdentity(rdev uint64) (id string, place bool) {
	const loop = "loop/backing_file" // a path too
	for _, name := range [...]string{"dm/uuid", "md/uuid", "wwid", "device/wwid", "device/serial", "serial", loop} {
		if v := blockAttribute(rdev, name); v != "" {
			return "block " + v + " " + blockAttribute(rdev, "partition"), name == loop
		}
	}
	path, err := filepath.EvalSymlinks(d.path)
	if err != nil {
		path = d.path
	}
	return "block at " + path, true
}
