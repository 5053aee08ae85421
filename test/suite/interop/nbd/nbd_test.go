// Package nbd has clients that we did not write judge the local faces of a volume: nbdinfo, nbdcopy, qemu-img and fio on
// the socket, and the kernel's ext4 on the file. The binaries are the ones a user has; the volume comes over iSER.
package nbd

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/port"
)

const target = "iqn.2026-11.io.sluice:faces"

// built is where the binaries are.
var built string

func TestMain(m *testing.M) {
	code, err := func() (int, error) {
		var err error
		if built, err = os.MkdirTemp("", "faces-bin"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(built)
		build := exec.Command("go", "build", "-o", built+"/", "../../../../cmd/sluiced", "../../../../cmd/sluice")
		if out, err := build.CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%w: %s", err, out)
		}
		return m.Run(), nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

type lab struct {
	t              *testing.T
	dir, addr, bin string
	daemon         *exec.Cmd
}

// start serves a volume of 256 MiB.
func start(t *testing.T) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "faces") // a test's own directory can have too long a name for a socket
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, dir: dir, bin: filepath.Join(dir, "bin")}
	// Links, so that each test's helpers can be told from another's by their command lines.
	if err := os.Mkdir(l.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"sluiced", "sluice"} {
		if err := os.Link(filepath.Join(built, n), filepath.Join(l.bin, n)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("SLUICE_RUNTIME_DIR", filepath.Join(dir, "run"))
	t.Setenv("SLUICE_STATE_DIR", filepath.Join(dir, "state"))
	if l.addr, err = port.Loopback(); err != nil {
		t.Fatal(err)
	}
	conf := fmt.Sprintf("state_dir: %s\nportals: [{address: %q}]\nvolumes: [{name: v, size: 256MiB}]\ntargets: [{name: %q, luns: [{lun: 0, volume: v}]}]\ntimeouts: {drain: 1s}\n", dir, l.addr, target)
	if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	img := filepath.Join(dir, "v.img") // the daemon makes no volume's file by itself
	if err := errors.Join(os.WriteFile(img, nil, 0o600), os.Truncate(img, 256<<20)); err != nil {
		t.Fatal(err)
	}
	l.up()
	t.Cleanup(l.down)
	return l
}

func (l *lab) up() {
	l.t.Helper()
	l.daemon = exec.Command(filepath.Join(l.bin, "sluiced"), "--config", filepath.Join(l.dir, "c.yaml"))
	if err := l.daemon.Start(); err != nil {
		l.t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // another process's port has no event
		if c, err := net.Dial("tcp", l.addr); err == nil {
			c.Close()
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatal("the daemon does not answer")
		}
	}
}

func (l *lab) down() {
	if err := l.daemon.Process.Signal(syscall.SIGKILL); err != nil {
		l.t.Error(err)
	}
	_ = l.daemon.Wait() // it was killed
}

func (l *lab) url() string { return "iser://" + l.addr + "/" + target + "/0" }

// run runs a program with a limit and fails the test when it fails.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // clean-ups run it too, when the test's context has ended
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (l *lab) sluice(args ...string) string { return run(l.t, filepath.Join(l.bin, "sluice"), args...) }

func (l *lab) socket() string {
	l.t.Helper()
	s := filepath.Join(l.dir, "s")
	l.sluice("attach", l.url(), "--face", "socket", "--socket", s, "--name", "x")
	l.t.Cleanup(func() { l.sluice("detach", "x") })
	return "nbd+unix:///?socket=" + s
}

func noise(t *testing.T, path string, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLibnbdAndQemuCopyThroughTheSocket(t *testing.T) {
	need.Tool(t, "nbdcopy", "libnbd-bin")
	need.Tool(t, "qemu-img", "qemu-utils")
	l := start(t)
	uri := l.socket()
	in, out := filepath.Join(l.dir, "in"), filepath.Join(l.dir, "out")
	want := noise(t, in, 64<<20)
	run(t, "nbdcopy", "--connections=4", in, uri)
	run(t, "nbdcopy", uri, out)
	got, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 256<<20 || !bytes.Equal(got[:len(want)], want) {
		t.Error("what nbdcopy read differs from what it wrote")
	}
	if m := run(t, "nbdinfo", "--map", uri); !strings.Contains(m, "hole,zero") || !strings.Contains(m, "data") {
		t.Errorf("the map has no hole or no data:\n%s", m)
	}
	if s := run(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", out, uri); !strings.Contains(s, "identical") {
		t.Errorf("qemu-img says %s", s)
	}
	run(t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", in, uri)
}

// The target is killed and started again under fio's load; fio sees nothing of it and every block verifies.
func TestFioVerifiesAcrossARestartOfTheTarget(t *testing.T) {
	need.Tool(t, "fio", "fio")
	l := start(t)
	uri := l.socket()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	fio := exec.CommandContext(ctx, "fio", "--name=v", "--ioengine=nbd", "--uri="+uri, "--rw=randrw", "--bs=4k", "--iodepth=16", "--size=128M",
		"--verify=crc32c", "--verify_fatal=1", "--rate_iops=1500,1500", "--io_size=24M", "--output-format=normal")
	fio.Dir = l.dir // it leaves a state file
	var out bytes.Buffer
	fio.Stdout, fio.Stderr = &out, &out
	if err := fio.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		time.Sleep(700 * time.Millisecond) // load, at any moment of which the target may die
		l.down()
		l.up()
	}
	if err := fio.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !strings.Contains(out.String(), "err= 0") {
		t.Errorf("fio says\n%s", out.String())
	}
}

func TestExt4OnTheFileThroughALoopDevice(t *testing.T) {
	need.Root(t)
	need.Device(t, "/dev/fuse")
	need.Device(t, "/dev/loop-control")
	need.Tool(t, "mkfs.ext4", "e2fsprogs")
	need.Tool(t, "fusermount3", "fuse3")
	l := start(t)
	mnt := filepath.Join(l.dir, "mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	l.sluice("mount", l.url(), mnt, "--face", "file", "--mkfs", "ext4", "--name", "m")
	want := noise(t, filepath.Join(mnt, "noise"), 20<<20)
	l.sluice("umount", mnt)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	again := exec.CommandContext(ctx, filepath.Join(l.bin, "sluice"), "mount", l.url(), mnt, "--face", "file", "--mkfs", "ext4")
	if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "not empty") {
		t.Fatalf("mkfs over a file system: %v %s", err, out)
	}
	if s := l.sluice("attachments", "-o", "json"); strings.TrimSpace(s) != "[]" {
		t.Errorf("the refused mount left %s", s)
	}
	l.sluice("mount", l.url(), mnt, "--face", "file", "--name", "m")
	got, err := os.ReadFile(filepath.Join(mnt, "noise"))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("after the second mount %d bytes, %v", len(got), err)
	}
	l.sluice("umount", mnt)
	img := filepath.Join(l.dir, "v.img")
	run(t, "e2fsck", "-f", "-n", img)
}

// A helper that is killed is shown as gone and cleaned up by the next call.
func TestAKilledHelperIsCleanedUp(t *testing.T) {
	l := start(t)
	s := filepath.Join(l.dir, "s")
	l.sluice("attach", l.url(), "--face", "socket", "--socket", s, "--name", "x")
	run(t, "pkill", "-KILL", "-f", "--", l.bin+"/sluice attach --foreground")
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(l.sluice("attachments"), "helper gone"); {
		if time.Now().After(deadline) {
			t.Fatalf("attachments shows\n%s", l.sluice("attachments"))
		}
	}
	l.sluice("attach", l.url(), "--face", "socket", "--socket", s, "--name", "x")
	l.sluice("detach", "x")
	if out := l.sluice("attachments", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("left: %s", out)
	}
}

func TestFailuresAreOneClearSentence(t *testing.T) {
	l := start(t)
	busy := filepath.Join(l.dir, "busy")
	l.sluice("attach", l.url(), "--face", "socket", "--socket", busy, "--name", "busy")
	defer l.sluice("detach", "busy")
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"no target of that name", []string{"attach", "iser://" + l.addr + "/iqn.2026-11.io.sluice:nope/0", "--face", "socket"}},
		{"logical unit not supported", []string{"attach", "iser://" + l.addr + "/" + target + "/9", "--face", "socket"}},
		{"does a target listen there", []string{"attach", "iser://127.0.0.1:1/" + target + "/0", "--face", "socket"}},
		{"attached already", []string{"attach", l.url(), "--face", "socket", "--name", "busy"}},
		{"is in use", []string{"attach", l.url(), "--face", "socket", "--name", "other", "--socket", busy}},
		{"none of auto, ublk, device", []string{"attach", l.url(), "--face", "disk"}},
		{"nothing is attached", []string{"detach", "nope"}},
		{"is no directory|needs root", []string{"mount", l.url(), filepath.Join(l.dir, "nowhere")}},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		out, err := exec.CommandContext(ctx, filepath.Join(l.bin, "sluice"), tc.args...).CombinedOutput()
		cancel()
		ok := false
		for _, w := range strings.Split(tc.want, "|") {
			ok = ok || strings.Contains(string(out), w)
		}
		if err == nil || !ok || strings.Count(strings.TrimSpace(string(out)), "\n") > 0 {
			t.Errorf("sluice %s: %v, says\n%s", strings.Join(tc.args, " "), err, out)
		}
	}
}
