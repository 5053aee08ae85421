// Command left runs a command and fails it for what it leaves behind: a process, a mount, a loop, network block or ublk device,
// shared memory, a network namespace. The gate runs each stage under it.
//
//	go run ./test/tool/left [-wait 15s] -- COMMAND [ARG...]
//
// The exit status is the command's own when that is not 0, and 1 when something is left.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	wait := flag.Duration("wait", 15*time.Second, "how long what ends by itself is given")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "left: usage: left [-wait 15s] -- COMMAND [ARG...]")
		os.Exit(2)
	}
	os.Exit(run(flag.Args(), *wait))
}

func run(argv []string, wait time.Duration) int {
	// Orphans come to this process and not to init: whatever the command left is a child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "left:", err)
		return 1
	}
	before := things()
	c := exec.Command(argv[0], argv[1:]...) //nolint:gosec // the command line is the caller's
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "left:", err)
		return 1
	}
	go func() {
		for s := range signals {
			_ = c.Process.Signal(s) // it may have ended
		}
	}()
	code, err := end(c.Process.Pid)
	if err != nil {
		fmt.Fprintln(os.Stderr, "left:", err)
		return 1
	}
	var l []string
	for end := time.Now().Add(wait); ; time.Sleep(100 * time.Millisecond) {
		if l = slices.Concat(children(), since(before)); len(l) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, s := range l {
		fmt.Fprintf(os.Stderr, "left: %s left behind: %s\n", argv[0], s)
	}
	if code == 0 && len(l) > 0 {
		return 1
	}
	return code
}

// end waits for the command. Orphans that end before it are reaped, as init does: tests wait until a process is gone.
func end(command int) (code int, err error) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case pid == command && ws.Exited():
			return ws.ExitStatus(), nil
		case pid == command && ws.Signaled():
			return 128 + int(ws.Signal()), nil
		}
	}
}

// children are the processes below this one; those that have ended are reaped.
func children() []string {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
			break
		}
	}
	parent := map[int]int{}
	entries, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, e := range entries {
		b, err := os.ReadFile(e)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(strings.Split(e, "/")[2])
		_, rest, _ := strings.Cut(string(b), ") ") // proc(5): pid (name) state ppid
		if f := strings.Fields(rest); len(f) > 1 {
			parent[pid], _ = strconv.Atoi(f[1])
		}
	}
	var l []string
	for pid := range parent {
		for p := parent[pid]; p > 1; p = parent[p] {
			if p == os.Getpid() {
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty when it is ending
				l = append(l, fmt.Sprintf("process %d: %s", pid, strings.TrimSpace(strings.ReplaceAll(string(b), "\x00", " "))))
				break
			}
		}
	}
	slices.Sort(l)
	return l
}

// things are what the machine has besides processes, by kind and name.
func things() map[string]bool {
	m := map[string]bool{}
	b, _ := os.ReadFile("/proc/self/mountinfo") // its absence is no mount
	for line := range strings.Lines(string(b)) {
		// proc(5): mount ID, parent, device, root, mount point, ... - type, source. The ID tells one from a later one.
		f := strings.Fields(line)
		if i := slices.Index(f, "-"); len(f) > 4 && i > 0 && i+2 < len(f) {
			m[fmt.Sprintf("mount %s: %s on %s, type %s", f[0], f[i+2], f[4], f[i+1])] = true
		}
	}
	for kind, pattern := range map[string]string{
		"loop device": "/sys/block/loop*/loop/backing_file", "nbd device": "/sys/block/nbd*/pid", "ublk device": "/sys/block/ublkb*",
		"shared memory": "/dev/shm/*", "network namespace": "/run/netns/*", "mapped device": "/sys/block/dm-*",
	} {
		l, _ := filepath.Glob(pattern)
		for _, name := range l {
			of, _ := os.ReadFile(name) // a directory has no text
			m[strings.TrimSpace(fmt.Sprintf("%s %s %s", kind, name, strings.TrimSpace(string(of[:min(len(of), 200)]))))] = true
		}
	}
	b, _ = os.ReadFile("/proc/sysvipc/shm")
	for i, line := range slices.Collect(strings.Lines(string(b))) {
		if f := strings.Fields(line); i > 0 && len(f) > 4 { // key, shmid, perms, size, cpid
			m[fmt.Sprintf("shared memory: segment %s of process %s", f[1], f[4])] = true
		}
	}
	return m
}

// since lists what was not there before.
func since(before map[string]bool) []string {
	var l []string
	for s := range things() {
		if !before[s] {
			l = append(l, s)
		}
	}
	slices.Sort(l)
	return l
}
