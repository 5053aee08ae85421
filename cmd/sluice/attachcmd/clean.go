package attachcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-storage/sluice/initiator/attach/fusemount"
	"github.com/sluice-storage/sluice/initiator/attach/nbdlink"
	"github.com/sluice-storage/sluice/initiator/attach/ublk"
	"github.com/sluice-storage/sluice/internal/unixsock"
)

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
	if r.alive() { // it was killed
		r.abort()
		if !r.awaitGone(forceLimit) {
			return fmt.Errorf("process %d, the helper of %s, cannot be killed: the kernel waits in it", r.PID, r.Name)
		}
	}
	errs := []error{r.letGo()}
	switch r.Face {
	case faceFile:
		if mounted(r.Dir) {
			errs = append(errs, fusemount.Unmount(r.Dir, true))
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
	errs = append(errs, controlPath(r.Name, func(path string) error { return gone(os.Remove(path)) }))
	for _, p := range []string{r.Dir, r.Log} {
		if p != "" {
			errs = append(errs, gone(os.Remove(p)))
		}
	}
	return errors.Join(append(errs, r.remove())...)
}

// abort ends the connection of a FUSE mount that the helper made. A thread of the helper may wait in it for an answer of the helper's
// own, as the library does while it mounts: a SIGKILL does not end such a wait, and the thread keeps the connection open.
func (r *Record) abort() {
	dir := r.Dir
	if r.Face == faceDir {
		dir = r.Mount
	}
	for _, m := range r.mounts() {
		if m.path == dir && strings.HasPrefix(m.kind, "fuse") {
			fusemount.Abort(dir, m.device)
		}
	}
}

// mounts are those that the helper sees, which may be in another mount namespace; ours, where none of its threads tells.
func (r *Record) mounts() []mountPoint {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/mountinfo", r.PID)) // the pattern is well formed
	for _, file := range tasks {
		if b, err := settled(func() ([]byte, error) { return os.ReadFile(file) }); err == nil && len(b) > 0 {
			return parseMountinfo(string(b))
		}
	}
	return mountPoints()
}

// letGo takes away what stands on the volume: the file system, out of sight if it is in use, and the loop device.
func (r *Record) letGo() error {
	var err error
	if r.Mount != "" && mounted(r.Mount) && r.mountIsOurs() {
		err = fusemount.Unmount(r.Mount, true)
	}
	return errors.Join(err, r.dropLoop())
}

// gone takes it for success that something was not there.
func gone(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
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
type mountPoint struct{ id, path, kind, source, device string }

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// mountPoints are those of this process's namespace, in the order they were made.
func mountPoints() []mountPoint {
	b, err := settled(func() ([]byte, error) { return os.ReadFile("/proc/thread-self/mountinfo") })
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
			out = append(out, mountPoint{id: f[0], path: unescape.Replace(f[4]), kind: g[0], source: unescape.Replace(g[1]), device: f[2]})
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
