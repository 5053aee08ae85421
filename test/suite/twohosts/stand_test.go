package twohosts

import (
	"cmp"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/test/lib/proc"
)

var programs string

// built goes around goleak's check, which exits.
type built struct{ m *testing.M }

func (b built) Run() int { return proc.Build(b.m, &programs) }

// A search that has run out of time ends by itself, at its next step, for which goleak's patience may be too short.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(built{m}, goleak.IgnoreAnyFunction("github.com/anishathalye/porcupine.checkSingle"))
}

const (
	iqn     = "iqn.2026-11.org.example:shared"
	portals = 3
	size    = 1 << 20
)

// stand is a daemon with three portals in two groups, and the files of its two volumes.
type stand struct {
	*proc.Daemon
	t     testing.TB
	file  string // of the volume that is mapped
	other string // of one that is mapped in its place, and that no host may write to

	mu sync.Mutex
	at []string // where it listens, in the order of addresses
}

func newStand(t testing.TB, dir string) *stand {
	s := &stand{t: t, file: filepath.Join(dir, "shared.img"), other: filepath.Join(t.TempDir(), "other.img")}
	// Another process makes the files: this one may serve the file system.
	if out, err := exec.Command("truncate", "-s", fmt.Sprint(size), s.file, s.other).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.Daemon = proc.New(t, programs, fmt.Sprintf(`portals:
  - {address: "127.0.0.1:0", group: 1}
  - {address: "127.0.0.2:0", group: 2}
  - {address: "127.0.0.3:0", group: 2}
volumes: [{name: shared, path: %q}, {name: other, path: %q}]
targets:
  - name: %q
    port_groups:
      - {group: 1, portals: [1]}
      - {group: 2, portals: [2]}
`, s.file, s.other, iqn))
	s.up()
	s.sluice("target", "map", iqn, "0", "shared")
	return s
}

// up starts the daemon and learns where it listens now.
func (s *stand) up() {
	s.t.Helper()
	s.Start()
	l := s.Portals()
	if len(l) != portals {
		s.t.Fatalf("the daemon listens at %v", l)
	}
	slices.SortFunc(l, func(a, b admin.Portal) int {
		return cmp.Compare(a.Address, b.Address)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = nil
	for _, p := range l {
		s.at = append(s.at, p.Address)
	}
}

func (s *stand) portal(k int) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at[k]
}

// sluice runs a command that must succeed.
func (s *stand) sluice(args ...string) {
	s.t.Helper()
	if out, code := s.Sluice(args...); code != 0 {
		s.t.Fatalf("sluice %v: exit code %d: %s", args, code, out)
	}
}
