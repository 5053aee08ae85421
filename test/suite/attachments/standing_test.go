package attachments

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// mountExt4 makes a file system on the stand's volume and mounts it.
func mountExt4(t *testing.T) (s *stand, dir string) {
	t.Helper()
	need.Root(t)
	need.Mount(t)
	need.FUSE(t)
	need.Device(t, "/dev/loop-control")
	need.Tool(t, "mkfs.ext4", "e2fsprogs")
	s = start(t)
	s.up()
	dir = filepath.Join(s.dir, "mnt")
	s.must("mount", s.url(), dir, "--name", "a", "--face", "file", "--mkfs", "ext4")
	return s, dir
}

// A healthy volume that is detached by force has what its file system still held in memory.
func TestDetachByForceWritesWhatAMountedFileSystemHolds(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprintf("a program is in it=%v", open), func(t *testing.T) {
			t.Parallel()
			s, dir := mountExt4(t)
			pid := s.attached()["a"].PID
			want := bytes.Repeat([]byte("what is held "), 100_000)
			f, err := os.Create(filepath.Join(dir, "f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.Write(want); err != nil {
				t.Fatal(err)
			}
			if !open {
				f.Close()
			}
			s.must("detach", "a", "--force")
			f.Close()
			s.nothing(pid)
			s.until("its loop device goes", func() bool {
				out, err := exec.CommandContext(t.Context(), "losetup", "--list", "--noheadings", "--output", "BACK-FILE").Output()
				return err == nil && !strings.Contains(string(out), s.dir)
			})

			s.must("mount", s.url(), dir, "--name", "a", "--face", "file")
			got, err := os.ReadFile(filepath.Join(dir, "f"))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes of %d are there, %v", len(got), len(want), err)
			}
			s.unmount("a")
		})
	}
}

// A file system that another mount covers is written all the same, or its loss is told.
func TestDetachByForceTellsOfAFileSystemThatIsCovered(t *testing.T) {
	t.Parallel()
	s, dir := mountExt4(t)
	pid := s.attached()["a"].PID
	f, err := os.Create(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("what is held "), 100_000)
	if _, err := f.Write(want); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if err := unix.Mount("cover", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	said, code := s.sluice("detach", "a", "--force")
	for unix.Unmount(dir, unix.MNT_DETACH) == nil { // the cover, and what it has covered
	}
	s.nothing(pid)
	if code != 0 {
		return // it is told
	}
	s.must("mount", s.url(), dir, "--name", "a", "--face", "file")
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("exit code 0: %s\nand %d bytes of %d are there, %v", said, len(got), len(want), err)
	}
	s.unmount("a")
}

// A mount namespace that copied the mount keeps the file system, and so the volume, in use. Who is refused for that is told which
// process it is, and a command that ends it.
func TestUmountNamesTheProcessWhoseNamespaceKeepsTheFileSystem(t *testing.T) {
	need.Tool(t, "unshare", "util-linux")
	s, dir := mountExt4(t)
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	other := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", "echo here; read end")
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); _ = other.Wait() }()
	if l := bufio.NewScanner(out); !l.Scan() || l.Text() != "here" {
		t.Fatalf("the other namespace says %q", l.Text())
	}
	said, code := s.sluice("umount", dir)
	_, way, _ := strings.Cut(said, fmt.Sprintf("in the mount namespace of process %d (sh): it ends with that, or by ", other.Process.Pid))
	way, _, _ = strings.Cut(strings.TrimSpace(way), ";")
	if code != 4 || way == "" {
		t.Fatalf("exit code %d: %s", code, said)
	}
	if b, err := exec.CommandContext(ctx, "sh", "-c", way).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", way, err, b)
	}
	s.unmount("a")
	s.must("mount", s.url(), dir, "--name", "a", "--face", "file")
	if got, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(got) != "kept" {
		t.Errorf("%q, %v", got, err)
	}
	s.unmount("a")
}
