// Package need lets a test say what it wants of the machine, and skip only when the machine has been asked and cannot
// give it. The message of a skip is the proof: the call that was tried and what it answered.
//
// A machine that calls itself CI (CI=true) was prepared for the tests: a tool that is missing there is a mistake in
// its preparation, and the test fails instead of skipping.
package need

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"unsafe"
)

// Root skips unless the test runs as uid 0. It proves no capability: a container's root may lack some.
func Root(t testing.TB) {
	t.Helper()
	if uid := os.Geteuid(); uid != 0 {
		t.Skipf("needs root: geteuid is %d", uid)
	}
}

// Capabilities skips unless the process has the capabilities, by their numbers (linux/capability.h), in effect.
func Capabilities(t testing.TB, numbers ...uint) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte("\nCapEff:\t"))
	rest, _, _ = bytes.Cut(rest, []byte("\n"))
	have, err := strconv.ParseUint(string(rest), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range numbers {
		if have&(1<<n) == 0 {
			t.Skipf("needs capability %d: the kernel lists %s in effect", n, rest)
		}
	}
}

// NotRoot skips when the test runs as uid 0, which no permission bits stop.
func NotRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("needs an ordinary user: geteuid is 0")
	}
}

// Tool returns the path of a program. It is looked for in PATH and in the sbin directories, which an ordinary user's
// PATH often leaves out. Without it the test skips, naming the Debian package that has it, or fails under CI=true.
func Tool(t testing.TB, name, debianPackage string) string {
	t.Helper()
	path, err := findTool(name)
	if err == nil {
		return path
	}
	missing(t, os.Getenv("CI"), fmt.Sprintf("needs the program %s (Debian package %s): %v", name, debianPackage, err))
	return ""
}

// File is Tool for what is no program: a header, a module.
func File(t testing.TB, path, debianPackage string) {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		missing(t, os.Getenv("CI"), fmt.Sprintf("needs %s (Debian package %s): %v", path, debianPackage, err))
	}
}

func findTool(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if p, e := exec.LookPath(dir + "/" + name); e == nil {
			return p, nil
		}
	}
	return "", err
}

// missing ends a test for want of something that a prepared machine has.
func missing(t testing.TB, ci, why string) {
	t.Helper()
	if ci == "true" || ci == "1" {
		t.Fatal(why + "; CI=true promises that it is there")
	}
	t.Skip(why)
}

// FUSE skips unless this process can open /dev/fuse and has a way to mount: root's mount(2) or fusermount.
func FUSE(t testing.TB) {
	t.Helper()
	Device(t, "/dev/fuse")
	if os.Geteuid() == 0 && canMount() == nil {
		return
	}
	for _, name := range []string{"fusermount3", "fusermount"} {
		if _, err := findTool(name); err == nil {
			return
		}
	}
	missing(t, os.Getenv("CI"), "needs fusermount3 (Debian package fuse3): not found, and mount(2) is not allowed here")
}

// Device skips unless path is a device node that opens for reading and writing. EBUSY counts as there.
func Device(t testing.TB, path string) {
	t.Helper()
	if err := tryDevice(path); err != nil {
		t.Skipf("needs %s: %v", path, err)
	}
}

func tryDevice(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeDevice == 0 {
		return fmt.Errorf("%s is no device node but %v", path, st.Mode().Type())
	}
	f, err := os.OpenFile(path, os.O_RDWR|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.EBUSY) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// RDMA skips unless the kernel has an RDMA adapter, or a soft device.
func RDMA(t testing.TB) {
	t.Helper()
	const dir = "/sys/class/infiniband"
	adapters, err := os.ReadDir(dir)
	if err != nil || len(adapters) == 0 {
		t.Skipf("needs an RDMA adapter (or: rdma link add rxe0 type rxe netdev eth0): %s has %d entries, %v", dir, len(adapters), err)
	}
}

// The main goroutine keeps the first thread, so that canMount never leaves that one in another mount namespace: /proc/self shows
// the first thread's.
func init() { runtime.LockOSThread() }

// Mount skips unless this process may call mount(2), tried with a tmpfs in a mount namespace of its own.
func Mount(t testing.TB) {
	t.Helper()
	if err := canMount(); err != nil {
		t.Skipf("needs mount(2): %v", err)
	}
}

// canMount tries a tmpfs on a thread that has left the mount namespace. The thread is never unlocked: the runtime ends
// it with its goroutine, and no other goroutine ever runs in its namespace.
func canMount() error {
	dir, err := os.MkdirTemp("", "need-mount")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(dir) }()
	res := make(chan error)
	go func() {
		runtime.LockOSThread()
		res <- func() error {
			if err := syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWNS); err != nil {
				return fmt.Errorf("unshare(CLONE_NEWNS): %w", err)
			}
			if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("mount --make-rprivate /: %w", err)
			}
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
				return fmt.Errorf("mount a tmpfs: %w", err)
			}
			return syscall.Unmount(dir, syscall.MNT_DETACH)
		}()
	}()
	return <-res
}

// IPv6 skips unless a socket can listen on ::1.
func IPv6(t testing.TB) {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("needs IPv6 loopback: %v", err)
	}
	_ = l.Close()
}

// Ring skips unless the kernel gives an io_uring with entries of 128 bytes: old kernels have none, and containers forbid it.
func Ring(t testing.TB) {
	t.Helper()
	var params [120]byte // struct io_uring_params; flags are its third word
	binary.NativeEndian.PutUint32(params[8:], 1<<10)
	const setup = 425 // io_uring_setup, the same number on every architecture
	fd, _, no := syscall.Syscall(setup, 1, uintptr(unsafe.Pointer(&params)), 0)
	if no != 0 {
		t.Skipf("needs io_uring_setup(2) with IORING_SETUP_SQE128: %v", no)
	}
	_ = syscall.Close(int(fd))
}

// IOUring skips where there is no io_uring, with what the system call answered. A machine that calls itself CI has it.
func IOUring(t testing.TB) {
	t.Helper()
	const setup = 425    // io_uring_setup(2) on every architecture
	var params [120]byte // struct io_uring_params
	fd, _, errno := syscall.Syscall(setup, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		missing(t, os.Getenv("CI"), fmt.Sprintf("needs io_uring: io_uring_setup(2) answers: %v", errno))
		return
	}
	_ = syscall.Close(int(fd))
}
