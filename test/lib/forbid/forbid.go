// Package forbid runs programs that may not make certain system calls, by seccomp(2), as in a container.
package forbid

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const env = "SLUICE_TEST_FORBID"

// IOUring is what Calls takes to forbid io_uring.
var IOUring = []int{unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER}

// Main is for TestMain: where the process was begun with what Wrap returns, it becomes that program and does not return.
func Main() {
	said := os.Getenv(env)
	if said == "" {
		return
	}
	fmt.Fprintln(os.Stderr, "forbid:", become(said))
	os.Exit(1)
}

// Wrap is what stands before a program's own arguments so that calls, system calls by number, answer errno. The test's own program
// is the first of it, whose TestMain calls Main.
func Wrap(errno unix.Errno, calls ...int) []string {
	l := []string{strconv.Itoa(int(errno))}
	for _, n := range calls {
		l = append(l, strconv.Itoa(n))
	}
	return []string{"/usr/bin/env", env + "=" + strings.Join(l, ","), os.Args[0]}
}

func become(said string) error {
	var numbers []uint32
	for s := range strings.SplitSeq(said, ",") {
		n, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return err
		}
		numbers = append(numbers, uint32(n))
	}
	// The number of the call is the first field of struct seccomp_data.
	filter := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}}
	for i, n := range numbers[1:] {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: uint8(len(numbers) - 1 - i), K: n})
	}
	filter = append(filter, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | numbers[0]})
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	runtime.LockOSThread() // the filter is a thread's, and what the thread becomes has it
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("PR_SET_NO_NEW_PRIVS: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0); err != nil {
		return fmt.Errorf("PR_SET_SECCOMP: %w", err)
	}
	var with []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, env+"=") {
			with = append(with, e)
		}
	}
	return syscall.Exec(os.Args[1], os.Args[1:], with)
}
