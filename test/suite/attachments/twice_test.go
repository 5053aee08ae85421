package attachments

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// Two mounts of one file system destroy it. The kernel sees two devices and lets them be, so sluice refuses the second: one after the
// other, at one time, and by the volume's other names.
func TestAVolumeIsNotMountedTwice(t *testing.T) {
	t.Parallel()
	need.Root(t)
	need.Mount(t)
	need.FUSE(t)
	need.Device(t, "/dev/loop-control")
	need.Tool(t, "mkfs.ext4", "e2fsprogs")
	s := start(t)
	s.up()
	var dirs []string
	for _, d := range []string{"m0", "m1"} {
		dirs = append(dirs, filepath.Join(s.dir, d))
		if err := os.Mkdir(dirs[len(dirs)-1], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.must("mount", s.url(), dirs[0], "--name", "a", "--face", "file", "--mkfs", "ext4")
	for _, url := range []string{s.url(), strings.Replace(s.url(), "iser:", "iscsi:", 1)} {
		if out, code := s.sluice("mount", url, dirs[1], "--name", "b", "--face", "file"); code != 4 || !strings.Contains(out, "sluice umount "+dirs[0]) {
			t.Errorf("a second mount by %s: %d %s", url, code, out)
		}
	}
	if out, code := s.sluice("mount", strings.Replace(s.url(), "iser:", "iscsi:", 1), dirs[0], "--name", "b", "--face", "file"); code != 4 {
		t.Errorf("a mount over it: %d %s", code, out)
	}

	// A directory that a link leads to is known by its place.
	link := filepath.Join(s.dir, "link")
	if err := os.Symlink(dirs[0], link); err != nil {
		t.Fatal(err)
	}
	s.unmount(link)
	if len(s.attached()) != 0 {
		t.Errorf("left: %v", s.attached())
	}
	s.must("mount", s.url(), link, "--name", "a", "--face", "file")
	if a := s.attached()["a"]; a.Mount != dirs[0] {
		t.Errorf("it is mounted on %q", a.Mount)
	}
	s.must("mount", s.url(), link, "--name", "a", "--face", "file") // as it is already
	s.unmount(dirs[0])

	for round := range 3 {
		var wg sync.WaitGroup
		codes := make([]int, 2)
		said := make([]string, 2)
		for i, d := range dirs {
			wg.Go(func() {
				said[i], codes[i] = s.sluice("mount", s.url(), d, "--name", fmt.Sprint("n", i), "--face", "file")
			})
		}
		wg.Wait()
		switch {
		case codes[0] == 0 && codes[1] == 0:
			t.Fatalf("round %d: both are mounted", round)
		case codes[0]+codes[1] != 4:
			t.Errorf("round %d: %v %q", round, codes, said)
		}
		for _, a := range s.attached() {
			s.unmount(a.Name)
		}
	}
}

// unmount unmounts a file system on a volume. Another test's mount namespace may have a copy of it for a while, which keeps it in use.
func (s *stand) unmount(what string) {
	s.t.Helper()
	s.until("umount "+what, func() bool {
		out, code := s.sluice("umount", what)
		if code != 0 && (code != 4 || !strings.Contains(out, "in use")) {
			s.t.Fatalf("umount %s: exit code %d: %s", what, code, out)
		}
		return code == 0
	})
}
