// Package fusemount ends mounts by FUSE. It does not wait for the kernel to end the connection, as the library does: the kernel
// keeps it while any mount namespace has a copy of the mount, and containers have copies of whatever was mounted when they
// began.
package fusemount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrBusy says that something in the mount is in use: an open file, or the working directory of a process.
var ErrBusy = errors.New("it is in use: close what is open there, and leave the directory")

// Abort ends the connection of the mount on dir, whose device number is "0:N": what waits for its server gets errors. The file that
// says so to the kernel is the mounting user's. Where that file system is not mounted root mounts it for a moment; where it cannot,
// a forced unmount does the same, if dir is in this process's mount namespace.
func Abort(dir, device string) {
	_, n, _ := strings.Cut(device, ":")
	if abortAt("/sys/fs/fuse/connections", n) == nil || abortByRoot(n) == nil {
		return
	}
	_ = unix.Unmount(dir, unix.UMOUNT_NOFOLLOW|unix.MNT_FORCE|unix.MNT_DETACH) // who waits for the end sees whether it helped
}

func abortAt(connections, n string) error {
	return os.WriteFile(filepath.Join(connections, n, "abort"), []byte("1"), 0)
}

func abortByRoot(n string) (err error) {
	at, err := os.MkdirTemp("", "sluice-fusectl")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(at) }() // an empty directory of ours
	if err := unix.Mount("fusectl", at, "fusectl", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Unmount(at, unix.MNT_DETACH)) }()
	return abortAt(at, n)
}

// Unmount takes a mount away from this process's mount namespace. A lazy one hides it at once, and what is open stays open. What is
// not mounted is no error.
func Unmount(dir string, lazy bool) error {
	flags, option := unix.UMOUNT_NOFOLLOW, "-u"
	if lazy {
		flags, option = flags|unix.MNT_DETACH, "-uz"
	}
	err := unix.Unmount(dir, flags)
	if errors.Is(err, unix.EPERM) { // an ordinary user's mount: fusermount3 may
		var out []byte
		if out, err = exec.Command("fusermount3", option, "--", dir).CombinedOutput(); err == nil {
			return nil
		}
		switch {
		case bytes.Contains(out, []byte("busy")):
			err = unix.EBUSY
		case bytes.Contains(out, []byte("not found in /etc/mtab")), bytes.Contains(out, []byte("Invalid argument")):
			return nil
		default:
			err = fmt.Errorf("fusermount3: %w: %s", err, bytes.TrimSpace(out))
		}
	}
	switch {
	case err == nil, errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: %w", dir, ErrBusy)
	}
	return fmt.Errorf("unmount %s: %w", dir, err)
}

// KeepFromChildren has no program that is run later inherit the connection of a mount. The library opens it without O_CLOEXEC where it
// needs no fusermount3, and while anything has it open, those who use the mount wait for a server that has died.
func KeepFromChildren() error {
	const own = "/proc/self/fd"
	l, err := os.ReadDir(own)
	if err != nil {
		return err
	}
	for _, e := range l {
		if to, err := os.Readlink(filepath.Join(own, e.Name())); err != nil || to != "/dev/fuse" {
			continue // closed meanwhile, or another file
		}
		if fd, err := strconv.Atoi(e.Name()); err == nil {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
