package nbd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// attempt runs sluice, or a link to it, and returns what it said and whether it failed.
func (l *lab) attempt(name string, args ...string) (string, error) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(l.bin, name), args...).CombinedOutput()
	return string(out), err
}

// The table is carried out as often as asked, and a volume that cannot be had stops no other.
func TestATableIsMappedTwiceAndUnmapped(t *testing.T) {
	l := start(t)
	tab := filepath.Join(l.dir, "tab")
	text := fmt.Sprintf("a %[1]s - as=socket\nb iser://127.0.0.1:1/%[2]s/0 - as=socket,nofail\nc %[1]s - noauto,as=socket,ro,reconnect=forever\n", l.url(), target)
	if err := os.WriteFile(tab, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	actions := func(args ...string) string {
		t.Helper()
		var steps []struct{ Name, Action, Path, Error string }
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(l.bin, "sluice"), append(args, "--table", tab, "-o", "json")...).Output()
		if err != nil || json.Unmarshal(out, &steps) != nil {
			t.Fatalf("sluice %q: %v\n%s", args, err, out)
		}
		s := ""
		for _, st := range steps {
			s += st.Name + ":" + st.Action + " "
		}
		return s
	}
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"a:attach b:attach ", []string{"map", "--dry-run"}},
		{"a:attach b:fail ", []string{"map"}},
		{"a:keep b:fail ", []string{"map"}},
		{"c:attach ", []string{"map", "c"}},
		{"a:detach b:keep c:detach ", []string{"unmap", "--dry-run"}},
		{"a:detach b:keep c:detach ", []string{"unmap"}},
		{"a:keep b:keep c:keep ", []string{"unmap"}},
	} {
		if got := actions(tc.args...); got != tc.want {
			t.Errorf("sluice %q: %s, want %s", tc.args, got, tc.want)
		}
	}
	if err := os.WriteFile(tab, []byte(strings.Replace(text, ",nofail", "", 1)+"\nd iser://h/x/0 - asd\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := l.attempt("sluice", "map", "--table", tab); err == nil || !strings.Contains(out, "tab:5:3: ") || !strings.Contains(out, "\n    ^") {
		t.Errorf("a broken table: %v\n%s", err, out)
	}
	if left := l.sluice("attachments", "-o", "json"); strings.TrimSpace(left) != "[]" {
		t.Errorf("left: %s", left)
	}
}

// The program under the names that mount(8) and umount(8) call, with their arguments.
func TestMountHelpersMountAndDetach(t *testing.T) {
	need.Root(t)
	need.Device(t, "/dev/fuse")
	need.Device(t, "/dev/loop-control")
	need.Tool(t, "mkfs.ext4", "e2fsprogs")
	l := start(t)
	mnt := filepath.Join(l.dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"mount.sluice", "umount.sluice"} {
		if err := os.Symlink("sluice", filepath.Join(l.bin, n)); err != nil {
			t.Fatal(err)
		}
	}
	l.sluice("mount", l.url(), mnt, "--face", "file", "--mkfs", "ext4")
	want := noise(t, filepath.Join(mnt, "noise"), 1<<20)
	l.sluice("umount", mnt)
	if out, err := l.attempt("mount.sluice", l.url(), mnt, "-f", "-o", "rw"); err != nil || strings.TrimSpace(l.sluice("attachments", "-o", "json")) != "[]" {
		t.Errorf("-f is to do nothing: %v %s", err, out)
	}
	// As systemd passes it, with one slash, and as mount(8) has it, without an environment; only the test's directory is named.
	bare := exec.Command(filepath.Join(l.bin, "mount.sluice"), strings.Replace(l.url(), "://", ":/", 1), mnt, "-o", "rw,noatime,as=fuse,fstype=ext4,name=m")
	bare.Env = []string{"SLUICE_RUNTIME_DIR=" + os.Getenv("SLUICE_RUNTIME_DIR")}
	if out, err := bare.CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	defer func() { _, _ = l.attempt("umount.sluice", mnt) }() // when the test fails before its end
	// Not by mountinfo: while others mount, a reader of it can miss lines.
	var st syscall.Statfs_t
	if err := syscall.Statfs(mnt, &st); err != nil || st.Flags&1024 == 0 { // ST_NOATIME
		t.Errorf("%v: mounted with flags 0x%x, without noatime", err, st.Flags)
	}
	if got, err := os.ReadFile(filepath.Join(mnt, "noise")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of the file, %v", len(got), err)
	}
	if out, err := l.attempt("mount.sluice", l.url(), mnt); err != nil {
		t.Errorf("mounting what is mounted: %v %s", err, out)
	}
	if out, err := l.attempt("mount.sluice", l.url(), mnt, "-o", "remount,ro"); err != nil {
		t.Errorf("remount: %v %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(mnt, "more"), nil, 0o600); err == nil {
		t.Error("after remount,ro a file can be made")
	}
	if out, err := l.attempt("sluice", "detach", "m"); err == nil || !strings.Contains(out, "sluice umount") {
		t.Errorf("detach of what is mounted: %v %s", err, out)
	}
	noted, err := os.ReadFile("/run/mount/utab")
	if err != nil {
		t.Error(err)
	}
	if _, line, _ := strings.Cut(string(noted), "TARGET="+mnt+" "); !strings.Contains(strings.SplitN(line, "\n", 2)[0], "_netdev") {
		t.Errorf("mount(8) has not noted that this is on the network:\n%s", noted)
	}
	flusher(t, l.attached(t)["m"].PID)
	if out, err := l.attempt("umount.sluice", mnt); err != nil {
		t.Errorf("%v %s", err, out)
	}
	if left := l.sluice("attachments", "-o", "json"); strings.TrimSpace(left) != "[]" {
		t.Errorf("left: %s", left)
	}
}

// flusher checks that every thread of a device's helper is one of the I/O path: the kernel may not wait in it for memory that
// waits for its answer (PR_SET_IO_FLUSHER, prctl(2)), where it lets this user say so.
func flusher(t *testing.T, pid int) {
	t.Helper()
	if _, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0); err != nil {
		t.Logf("the kernel refuses PR_SET_IO_FLUSHER here: %v", err)
		return
	}
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		t.Fatalf("threads of %d: %v", pid, err)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		flags, perr := strconv.ParseUint(f[6], 10, 64)
		const noIO, localThrottle = 0x00080000, 0x00100000 // Linux include/linux/sched.h
		if err != nil || perr != nil || flags&noIO == 0 || flags&localThrottle == 0 {
			t.Errorf("%s: flags 0x%x, %v, %v", path, flags, err, perr)
		}
	}
}

// A helper that dies under a mounted file system: the next call takes away mount, loop device and record.
func TestAMountWhoseHelperIsKilledIsCleanedUp(t *testing.T) {
	need.Root(t)
	need.Device(t, "/dev/fuse")
	need.Device(t, "/dev/loop-control")
	need.Tool(t, "mkfs.ext4", "e2fsprogs")
	l := start(t)
	mnt := filepath.Join(l.dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	l.sluice("mount", l.url(), mnt, "--face", "file", "--mkfs", "ext4", "--name", "m")
	run(t, "sync", "-f", mnt)
	loop := l.attached(t)["m"].Loop
	run(t, "pkill", "-KILL", "-f", "--", l.bin+"/sluice attach --foreground")
	for deadline := time.Now().Add(30 * time.Second); !l.attached(t)["m"].Broken; { // another process's end has no event
		if time.Now().After(deadline) {
			t.Fatalf("attachments: %+v", l.attached(t))
		}
	}
	l.sluice("umount", mnt)
	if b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(loop), "loop/backing_file")); err == nil && strings.Contains(string(b), l.dir) {
		t.Errorf("%s still stands on %s", loop, b)
	}
	if info, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(info), l.dir) {
		t.Errorf("%v: still mounted:\n%s", err, info)
	}
	l.sluice("mount", l.url(), mnt, "--face", "file", "--name", "m")
	l.sluice("umount", mnt)
	if left := l.attached(t); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

type attachment struct {
	Name, Path, Loop, Mount, Away string
	PID                           int
	Broken                        bool
}

func (l *lab) attached(t *testing.T) map[string]attachment {
	t.Helper()
	var as []attachment
	if err := json.Unmarshal([]byte(l.sluice("attachments", "-o", "json")), &as); err != nil {
		t.Fatal(err)
	}
	m := map[string]attachment{}
	for _, a := range as {
		m[a.Name] = a
	}
	return m
}

// A file system is made on what is blank, and on nothing else.
func TestMkfsIsGuarded(t *testing.T) {
	need.Root(t)
	need.Device(t, "/dev/fuse")
	need.Device(t, "/dev/loop-control")
	need.Tool(t, "mkfs.ext4", "e2fsprogs")
	l := start(t)
	mnt := filepath.Join(l.dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		offset, content, want string
	}{
		{"0", "somebody's database", "byte 0 is not zero"},
		{"268435455", "x", "byte 268435455 is not zero"},
		{"0", "LUKS\xba\xbe\x00\x01", "crypto_LUKS"},
	} {
		piece := filepath.Join(l.dir, "piece")
		if err := os.WriteFile(piece, []byte(tc.content), 0o600); err != nil {
			t.Fatal(err)
		}
		l.sluice("write", l.url(), piece, "--offset", tc.offset)
		out, err := l.attempt("sluice", "mount", l.url(), mnt, "--face", "file", "--mkfs", "ext4")
		if err == nil || !strings.Contains(out, "not empty") || !strings.Contains(out, tc.want) {
			t.Errorf("over %q: %v %s", tc.content, err, out)
		}
		if err := os.WriteFile(piece, make([]byte, len(tc.content)), 0o600); err != nil {
			t.Fatal(err)
		}
		l.sluice("write", l.url(), piece, "--offset", tc.offset)
	}
	if left := l.attached(t); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// While the target is away attachments says so; programs wait for it no longer than the limit.
func TestATargetAwayForLongerThanTheLimit(t *testing.T) {
	need.Tool(t, "nbdcopy", "libnbd-bin")
	l := start(t)
	s := filepath.Join(l.dir, "s")
	l.sluice("attach", l.url(), "--face", "socket", "--socket", s, "--name", "x", "--reconnect", "1s")
	defer l.sluice("detach", "x")
	l.down()
	for deadline := time.Now().Add(30 * time.Second); l.attached(t)["x"].Away == ""; { // the helper looks twice a second
		if time.Now().After(deadline) {
			t.Fatalf("attachments:\n%s", l.sluice("attachments"))
		}
	}
	if out := l.sluice("attachments"); !strings.Contains(out, "target away") {
		t.Errorf("attachments:\n%s", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nbdcopy", "nbd+unix:///?socket="+s, filepath.Join(l.dir, "out")).CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Errorf("reading: %v %s", err, out)
	}
	l.up()
	for deadline := time.Now().Add(60 * time.Second); l.attached(t)["x"].Away != ""; {
		if time.Now().After(deadline) {
			t.Fatalf("attachments:\n%s", l.sluice("attachments"))
		}
	}
	run(t, "nbdcopy", "nbd+unix:///?socket="+s, filepath.Join(l.dir, "out"))
}

// The secret comes from a file, and a wrong one is said to be wrong.
func TestCredentialsComeFromAFile(t *testing.T) {
	l := start(t)
	for file, text := range map[string]string{"secrets": "mounts 1234567890ab\n", "right": "username=mounts\npassword=1234567890ab\n", "wrong": "username=mounts\npassword=ba0987654321\n"} {
		if err := os.WriteFile(filepath.Join(l.dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	conf := filepath.Join(l.dir, "c.yaml")
	b, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	l.down()
	b = bytes.Replace(b, []byte("luns: ["), []byte("auth: {secrets_file: "+filepath.Join(l.dir, "secrets")+"}, luns: ["), 1)
	if err := os.WriteFile(conf, b, 0o600); err != nil {
		t.Fatal(err)
	}
	l.up()
	for _, scheme := range []string{"iser", "iscsi"} {
		url := strings.Replace(l.url(), "iser", scheme, 1)
		l.sluice("attach", url, "--face", "socket", "--name", "x", "--credentials", filepath.Join(l.dir, "right"))
		l.sluice("detach", "x")
		for _, args := range [][]string{{}, {"--credentials", filepath.Join(l.dir, "wrong")}} {
			out, err := l.attempt("sluice", append([]string{"attach", url, "--face", "socket", "--name", "x"}, args...)...)
			if err == nil || !strings.Contains(strings.ToLower(out), "authenti") || strings.Contains(out, "ba0987654321") || strings.Count(strings.TrimSpace(out), "\n") > 0 {
				t.Errorf("%s %q: %v %s", scheme, args, err, out)
			}
		}
	}
}
