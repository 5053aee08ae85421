package attachcmd

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// becomeFlusher tells the kernel that this process serves block devices (PR_SET_IO_FLUSHER, prctl(2), Linux 5.6). Without
// it, memory that a request needs can make the kernel wait for pages that are locked until that very request is answered.
// The mark is a thread's and outlives exec, so the program begins again with it, in the same process.
func becomeFlusher(face string) error {
	if os.Geteuid() != 0 || face == faceSocket || face == faceDir {
		return nil
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	if err == nil && on == 1 {
		return nil
	}
	if err == nil {
		err = unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) { // a container's root, or an older kernel
		fmt.Fprintf(os.Stderr, "sluice: the kernel does not take this process for one that serves devices (%v); under memory pressure it may wait for itself\n", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("prctl PR_SET_IO_FLUSHER: %w", err)
	}
	return fmt.Errorf("begin again: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}
