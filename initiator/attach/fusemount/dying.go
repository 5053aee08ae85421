package fusemount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Dying reports whether a thread has SIGKILL pending: the kernel turns every fatal signal into that one, for all threads
// (proc(5), SigPnd). One that is gone is dead. The kernel tells a file system of every signal that a waiting process gets, and file
// operations are expected to go on then, unless the signal kills (signal(7)).
func Dying(tid uint32) bool {
	if tid == 0 {
		return true // in a PID namespace that is not ours: it cannot be looked at, and must not be beyond killing
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	for _, field := range []string{"\nSigPnd:\t", "\nShdPnd:\t"} {
		_, rest, _ := strings.Cut(string(b), field)
		mask, _, _ := strings.Cut(rest, "\n")
		if m, err := strconv.ParseUint(mask, 16, 64); err == nil && m&(1<<(uint(syscall.SIGKILL)-1)) != 0 {
			return true
		}
	}
	return false
}
