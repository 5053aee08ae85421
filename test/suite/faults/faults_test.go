package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-storage/sluice/test/lib/need"
)

var sluiced string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "faults")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	sluiced, err = Build(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func start(t *testing.T, full bool) *Daemon {
	t.Helper()
	d, err := Start(sluiced, t.TempDir(), full)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Errorf("%v\n%s", err, tail(d.Log()))
		}
	})
	return d
}

func tail(log string) string {
	lines := strings.Split(log, "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

func neighbour(t *testing.T, d *Daemon) *Good {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	g, err := NewGood(ctx, &d.Rig)
	if err != nil {
		t.Fatalf("%v\n%s", err, tail(d.Log()))
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Errorf("the good neighbour: %v", err)
		}
	})
	return g
}

// One daemon and one good neighbour live through all bad peers.
func TestBadPeers(t *testing.T) {
	d := start(t, false)
	g := neighbour(t, d)
	if err := g.Works(50); err != nil {
		t.Fatal(err)
	}
	fds, err := d.FDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Peers() {
		t.Run(p.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := p.Run(ctx, &d.Rig); err != nil {
				t.Errorf("%v\n%s", err, tail(d.Log()))
			}
			if err := d.Alive(); err != nil {
				t.Fatal(err)
			}
			if err := g.Works(20); err != nil {
				t.Fatalf("%v\n%s", err, tail(d.Log()))
			}
			now, most, err := d.RSS()
			if err != nil {
				t.Fatal(err)
			}
			if most > RSSBound {
				t.Fatalf("the daemon takes %d MiB, and took %d MiB; %d MiB is its bound", now>>20, most>>20, RSSBound>>20)
			}
		})
		if d.Alive() != nil {
			return
		}
	}
	// What the bad peers held goes back: no descriptor is left of them.
	limit := time.Now().Add(patience)
	for {
		left, err := d.FDs()
		if err != nil {
			t.Fatal(err)
		}
		if left <= fds {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%d descriptors are open, and were %d before the bad peers", left, fds)
		}
		time.Sleep(10 * time.Millisecond)
	}
	now, most, err := d.RSS()
	t.Logf("resident: %d MiB now, %d MiB at most, %v", now>>20, most>>20, err)
}

// A volume on a file system that is full: its writes fail with a sense that says so, what was written stays readable,
// and the other volumes work on.
func TestFullDisk(t *testing.T) {
	need.Root(t)
	need.Mount(t)
	if _, err := exec.LookPath("unshare"); err != nil {
		need.Tool(t, "unshare", "util-linux")
	}
	d := start(t, true)
	g := neighbour(t, d)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rig := d.Rig
	rig.LUN = fullLUN
	s, err := full(ctx, &rig, false, "InitialR2T=Yes", "ImmediateData=No")
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	const blocks = 128
	room := 0
	for lba := uint64(0); lba < fullSize/sector; lba += blocks {
		st, err := s.write(&rig, lba, blocks, byte(lba/blocks))
		if err != nil {
			t.Fatalf("block %d: %v\n%s", lba, err, tail(d.Log()))
		}
		if st.status == 0 {
			room++
			continue
		}
		// SBC-4 section 4.7.3.6: DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT.
		if st.status != 2 || st.key != 7 || st.asc != 0x27 || st.ascq != 7 {
			t.Fatalf("a write without room ended with %v", st)
		}
		break
	}
	if room == 0 || room*blocks*sector > fullRoom {
		t.Fatalf("%d writes of %d KiB went into %d KiB", room, blocks/2, fullRoom>>10)
	}
	if err := s.still(&rig); err != nil {
		t.Fatal(err)
	}
	st, err := s.do(&rig, s.read(&rig, 0, blocks), nil, advertise(false, false))
	if err != nil || st.status != 0 || st.dataIn != blocks*sector {
		t.Fatalf("what was written before: %v, %v", st, err)
	}
	if err := g.Works(50); err != nil {
		t.Fatal(err)
	}
	if err := d.Alive(); err != nil {
		t.Fatal(err)
	}
}
