package powercut

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/faultfs"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/proc"
	"github.com/sluice-storage/sluice/test/lib/storm"
)

// site is a volume with its hosts.
type site struct {
	*stand
	ours     []*writer
	vols     []*block.Volume
	stranger *stranger
	rng      *rand.Rand
}

func newSite(t testing.TB, seed uint64) *site {
	t.Helper()
	need.Tool(t, "qemu-io", "qemu-utils")
	need.File(t, "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so", "qemu-block-extra")
	s := &site{stand: newStand(t, seed%2 == 1), rng: rand.New(rand.NewPCG(seed, 0))}
	for i, scheme := range []string{"iscsi", "iser"} {
		s.ours = append(s.ours, newWriter(scheme, int64(i)*64, 64, seed))
		s.vols = append(s.vols, s.open(scheme))
	}
	// The file's size is durable with its first fsync.
	if err := errors.Join(one(t.Context(), s.vols[0], 512*sector, 1, false), s.vols[0].Flush(t.Context())); err != nil {
		t.Fatal(err)
	}
	s.stranger = newStranger(newWriter("qemu-io", 1024, 8, seed), "iscsi://"+s.w.addr()+"/"+target+"/0")
	return s
}

// wait looks until it is so, and reports whether it ever was.
func wait(so func() bool) bool {
	for begin := time.Now(); !so(); time.Sleep(200 * time.Microsecond) {
		if time.Since(begin) > proc.Patience {
			return false
		}
	}
	return true
}

// cut is one loss of power while all write; tell says whether the daemon can know of it when it starts again.
func (s *site) cut(tell bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*proc.Patience)
	defer cancel()
	running, kill := context.WithCancel(ctx)
	defer kill()
	var stop atomic.Bool
	var all sync.WaitGroup
	for i, w := range s.ours {
		all.Go(func() { w.work(ctx, s.vols[i], &stop) })
	}
	all.Go(func() { s.stranger.work(running, &stop) })
	seed := s.rng.Uint64()
	switch s.rng.IntN(3) {
	case 0: // of the whole machine, at any moment
		time.Sleep(time.Duration(s.rng.IntN(60)) * time.Millisecond) // a moment is what is drawn
	case 1: // of the medium first, in the middle of any call: commands end with errors before the machine goes
		s.fs.CutAfter(s.rng.IntN(300), seed)
		if !wait(s.fs.IsOff) {
			return errors.New("nothing is written")
		}
	case 2: // the same, once the stranger has something to lose
		if had := s.stranger.runs.Load(); !wait(func() bool { return s.stranger.runs.Load() > had }) {
			return errors.New("no run of qemu-io ends well")
		}
		s.fs.CutAfter(s.rng.IntN(300), seed)
		if !wait(s.fs.IsOff) {
			return errors.New("nothing is written")
		}
	}
	s.off(seed)
	kill()
	stop.Store(true)
	if tell {
		if err := proc.NextBoot(s.d.State); err != nil {
			return err
		}
	}
	s.on()
	all.Wait()
	for i, w := range s.ours {
		if err := w.judge(ctx, s.vols[i]); err != nil {
			return err
		}
	}
	// What the stranger wrote is read by one of ours.
	b := make([]byte, len(s.stranger.places)*sector)
	if _, err := s.vols[0].ReadAt(b, s.stranger.first*sector); err != nil {
		return err
	}
	return s.stranger.compare(b)
}

// TestStormPowerCut: what was acknowledged as durable is there after any loss of power, no flush claims what was lost, and
// every call ends.
func TestStormPowerCut(t *testing.T) {
	seed := storm.Seed(t)
	for round := range storm.Rounds(t, 1) {
		t.Run(fmt.Sprint("seed=", seed+uint64(round)), func(t *testing.T) {
			cuts := 6
			if storm.Long() {
				cuts = 40
			}
			s := newSite(t, seed+uint64(round))
			done := 0
			defer func() {
				heard, silent := 0, 0
				for _, w := range s.ours {
					heard, silent = heard+w.heard, silent+w.silent
				}
				for what, n := range map[string]int{"power cuts": done, "losses heard": heard, "flushes with nothing to tell": silent, "runs of the stranger": int(s.stranger.runs.Load())} {
					storm.Count(t, what, n)
					t.Logf("%s: %d", what, n)
				}
			}()
			for range cuts {
				if err := s.cut(true); err != nil {
					t.Fatalf("cut %d: %v", done, err)
				}
				done++
			}
		})
	}
}

// The judge is able to find what it is for: a medium that lies about its fsyncs, and a target that does not say that it has
// lost its power.
func TestALossIsFound(t *testing.T) {
	find := func(t *testing.T, s *site, tell bool) {
		t.Helper()
		for n := range 200 {
			var broken *lost
			if err := s.cut(tell); errors.As(err, &broken) {
				t.Logf("cut %d: %v", n, err)
				return
			} else if err != nil {
				t.Fatal(err)
			}
		}
		t.Error("200 cuts, and nothing is found")
	}
	t.Run("fsync that does nothing", func(t *testing.T) {
		s := newSite(t, 1)
		s.fs.Lie(func(c faultfs.Call) bool { return c.Name == "fsync" && c.File == "v" })
		find(t, s, true)
	})
	t.Run("no word of it", func(t *testing.T) { find(t, newSite(t, 2), false) })
}
