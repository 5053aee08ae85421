package attachcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/attach/nbdlink"
	"github.com/sluice-storage/sluice/initiator/attach/ublk"
	"github.com/sluice-storage/sluice/internal/unixsock"
)

// end stops the helper and waits until it is gone; a mounted file system must be unmounted first.
func (r *Record) end() error {
	alive := r.alive()
	if alive && r.Mount != "" && mounted(r.Mount) {
		return refused("%s is mounted on %s; run sluice umount %s", r.Name, r.Mount, r.Mount)
	}
	if !alive {
		return r.clean()
	}
	if (r.Face == faceUblk || r.Face == faceDevice) && inUse(r.Path) {
		return refused("%s is in use: a file system on it is mounted, or another device stands on it", r.Path)
	}
	if err := r.dropLoop(); err != nil {
		return err
	}
	if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(readyLimit); r.alive(); time.Sleep(20 * time.Millisecond) { // another's child has no event
		if time.Now().After(deadline) {
			return fmt.Errorf("the helper of %s does not end; see %s", r.Name, r.Log)
		}
	}
	return r.clean()
}

// inUse asks for a block device exclusively, which a mount, swap or device-mapper device on it refuses.
func inUse(dev string) bool {
	f, err := os.OpenFile(dev, os.O_RDONLY|syscall.O_EXCL, 0)
	if err != nil {
		return errors.Is(err, syscall.EBUSY)
	}
	return f.Close() != nil
}

// clean removes what a helper that is gone left: nothing, if it ended by itself. After it was killed a file system that is
// still mounted stands on nothing, and is taken out of sight.
func (r *Record) clean() error {
	var errs []error
	if r.Mount != "" && mounted(r.Mount) && r.mountIsOurs() {
		errs = append(errs, hide(r.Mount))
	}
	errs = append(errs, r.dropLoop())
	switch r.Face {
	case faceFile:
		if mounted(r.Dir) {
			errs = append(errs, hide(r.Dir))
		}
	case faceUblk:
		if r.Path != "" {
			errs = append(errs, ublk.Delete(r.Index, r.PID))
		}
	case faceDevice:
		// The number may be another's by now: the identifier in sysfs says whose it is (Linux 5.14).
		// A helper that was killed early has not yet said its number.
		for _, n := range nbdlink.Owned(r.backend()) {
			errs = append(errs, nbdlink.Disconnect(n))
		}
	case faceSocket:
		errs = append(errs, unixsock.RemoveDead(r.Path))
	}
	for _, p := range []string{r.Dir, r.Log} {
		if p != "" {
			errs = append(errs, gone(os.Remove(p)))
		}
	}
	return errors.Join(append(errs, r.remove())...)
}

// gone takes it for success that something was not there.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// hide takes a mount out of sight, whoever uses it.
func hide(path string) error {
	err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EPERM) { // an ordinary user's FUSE mount
		var out []byte
		if out, err = exec.Command("fusermount3", "-u", "-z", "--", path).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	return nil
}

// backend names the helper to the kernel.
func (r *Record) backend() string { return fmt.Sprintf("sluice-%d-%d", r.PID, r.Start) }

// dropLoop detaches the loop device that mount made, if it still stands on our file.
func (r *Record) dropLoop() error {
	l := r.Loop
	r.Loop = ""
	if l == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(l), "loop/backing_file"))
	if err != nil || strings.TrimSpace(string(b)) != r.Path {
		return nil // it has gone with the file system, or is another's
	}
	return tool(context.Background(), "losetup", "--detach", l)
}

// mountPoint is one line of proc(5)'s mountinfo.
type mountPoint struct{ path, kind, source string }

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoints are those of this process's namespace, in the order they were made.
func mountPoints() []mountPoint {
	b, err := settled(func() ([]byte, error) { return os.ReadFile("/proc/self/mountinfo") })
	if err != nil {
		return nil
	}
	return parseMountinfo(string(b))
}

// settled reads until two readings agree, for a while: the kernel writes mountinfo a page at a time, and lines can be missing
// from what is read while others mount and unmount.
func settled(read func() ([]byte, error)) ([]byte, error) {
	last, err := read()
	for range 20 {
		if err != nil {
			return nil, err
		}
		var b []byte
		if b, err = read(); err == nil && bytes.Equal(b, last) {
			return b, nil
		}
		last = b
	}
	return last, err
}

func parseMountinfo(s string) []mountPoint {
	var out []mountPoint
	for _, l := range strings.Split(s, "\n") {
		left, right, ok := strings.Cut(l, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		if ok && len(f) > 4 && len(g) > 1 {
			out = append(out, mountPoint{path: unescape.Replace(f[4]), kind: g[0], source: unescape.Replace(g[1])})
		}
	}
	return out
}

// mounted reports whether something is mounted on path.
func mounted(path string) bool {
	for _, m := range mountPoints() {
		if m.path == path {
			return true
		}
	}
	return false
}

// mountIsOurs reports whether what is mounted last on the record's directory stands on the record's device.
func (r *Record) mountIsOurs() bool {
	source := ""
	for _, m := range mountPoints() {
		if m.path == r.Mount {
			source = m.source
		}
	}
	return source != "" && (source == r.Path || source == r.Loop || r.Face == faceDir && source == r.URL)
}
