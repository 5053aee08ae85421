package gateway

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/test/lib/storm"
)

const blocks = 6

// play runs a schedule of faults under load, and says what was wrong.
func play(t *testing.T, seed uint64, m mutant, faults int) (wrong []string, terms uint64, longest time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, m, "a", "b", "c")
		w.await(10*time.Second, anyNode)
		w.work(blocks)
		for range 2 {
			w.workers.Add(1)
			go w.changer()
		}
		for range faults {
			w.fault()
			time.Sleep(time.Duration(w.c.rand(3000)) * time.Millisecond)
		}
		time.Sleep(25 * time.Second) // each fault has passed
		before := w.written()
		time.Sleep(10 * time.Second)
		after := w.written()
		for b := range blocks {
			if after[b] <= before[b] {
				w.c.mu.Lock()
				w.c.complain("block %d: not written in the 10 s after the last fault: %d", b, after[b])
				w.c.mu.Unlock()
			}
		}
		if n := w.owner(); n != nil {
			terms = n.volume().Status().Term
		}
		w.mu.Lock()
		longest = w.pause
		if w.changes < faults/2 {
			t.Errorf("%d changes of reservations were answered", w.changes)
		}
		w.mu.Unlock()
		wrong = w.end()
	})
	return wrong, terms, longest
}

// fault begins one fault at random, and its end.
func (w *world) fault() {
	n := w.nodes[w.c.rand(len(w.nodes))]
	if own := w.owner(); own != nil && w.c.rand(2) == 0 {
		n = own
	}
	p, g, v := n.process(), n.gateway(), n.volume()
	if p == nil {
		return
	}
	after := func(seconds int, do func()) {
		d := time.Duration(200+w.c.rand(1000*seconds)) * time.Millisecond
		w.over.Go(func() {
			time.Sleep(d)
			do()
		})
	}
	switch w.c.rand(8) {
	case 0:
		n.kill()
		after(6, func() { n.start(nil) })
	case 1, 2:
		p.running.shut()
		after(15, p.running.open)
	case 3:
		p.ceph.shut()
		after(15, p.ceph.open)
	case 4:
		n.cutLAN(p)
		after(15, p.lan.open)
	case 5: // the classic ghost, beside an OSD that hears of no map
		i := 1 + w.c.rand(osds-1)
		w.c.cut(i, true)
		p.running.shut()
		after(15, p.running.open)
		after(18, func() { w.c.cut(i, false) })
	case 6:
		w.over.Go(func() { v.Take(w.ctx, CauseOperator) })
	case 7:
		w.over.Go(func() {
			if g.Drain(w.ctx) == nil {
				g.Undrain()
			} else {
				g.Undrain()
			}
		})
	}
}

// A schedule is of a seed, and goroutines add some chance of their own. Nothing is lost and nothing lands late, whatever happens to three gateways under load, and I/O goes on in the end.
func TestStormGateways(t *testing.T) {
	rounds, seed := storm.Rounds(t, 5), storm.Seed(t)
	takeovers, longest := 0, time.Duration(0)
	for i := range rounds {
		wrong, terms, pause := play(t, seed+uint64(i), sound, 25)
		takeovers += int(terms)
		longest = max(longest, pause)
		for _, s := range wrong {
			t.Errorf("seed %d: %s", seed+uint64(i), s)
		}
	}
	storm.Count(t, "takeovers of a volume", takeovers)
	t.Logf("%d takeovers; the longest pause of a block was %v", takeovers, longest)
	if takeovers < 2*rounds {
		t.Errorf("%d takeovers in %d rounds: nothing was tried", takeovers, rounds)
	}
}

// ghost is the classic one: the owner is stopped with a write in its hands, another takes over and has a newer write of the same block
// acknowledged, and the first goes on. With cut the OSD of the block hears of no map meanwhile.
func ghost(t *testing.T, m mutant, seed uint64, cut bool) (wrong []string) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, m, "a", "b")
		own := w.await(10*time.Second, anyNode)
		s := own.volume().Serving().(*serving)
		w.c.cut(1, cut)
		own.process().running.shut()
		w.over.Go(func() { s.write(w.ctx, 0, 1) })
		next := w.await(10*time.Second, isNot(own.name)).volume().Serving().(*serving)
		var acked atomic.Bool
		w.over.Go(func() {
			if err := next.write(w.ctx, 0, 2); err != nil {
				t.Errorf("the new owner's write: %v", err)
				return
			}
			w.c.ack(0, 2)
			acked.Store(true)
		})
		time.Sleep(shortBlocked + time.Second)
		if m == sound && cut && acked.Load() {
			t.Error("the new owner's write did not wait for the OSD to hear of the blocklist")
		}
		own.process().running.open()
		time.Sleep(time.Second)
		w.c.cut(1, false)
		time.Sleep(2 * time.Second)
		if !acked.Load() {
			t.Error("the new owner's write was not acknowledged in the end")
		}
		wrong = w.end()
	})
	return wrong
}

// The suite sees what it is there to see: each takeover that leaves something out loses data, where the whole one does not.
func TestEachMutantLosesData(t *testing.T) {
	const tries = 20
	for m, name := range map[mutant]string{sound: "nothing", noWaitForMap: "no wait for the OSD map", noBlocklist: "no blocklist",
		shortBlocklist: "a short blocklist expiry"} {
		t.Run(name, func(t *testing.T) {
			lost := 0
			for seed := range uint64(tries) {
				wrong := ghost(t, m, seed/2, seed%2 == 0)
				if lost += len(wrong); m == sound && len(wrong) > 0 || len(wrong) > 0 && lost == len(wrong) {
					t.Logf("seed %d: %s", seed, wrong[0])
				}
			}
			if (lost > 0) != (m != sound) {
				t.Errorf("%d writes were lost", lost)
			}
		})
	}
}

// A write that the network holds while the volume moves away and back comes in a session of the gateway that owns it again. The cluster
// cannot tell it from a new one; the target can, by what the initiator had read when it sent the write.
func TestAHeldWriteIsOfAnEarlierTerm(t *testing.T) {
	held := func(m mutant, seed uint64) (wrong []string) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, seed, m, "a", "b")
			own := w.await(10*time.Second, anyNode)
			other := w.nodes[0]
			if other == own {
				other = w.nodes[1]
			}
			w.work(blocks)
			time.Sleep(3 * time.Second)
			p := own.process()
			p.lan.shut() // for less than the pings of the session take
			for _, n := range []*node{other, own} {
				if err := n.volume().Take(w.ctx, CauseOperator); err != nil {
					t.Error(err)
				}
				time.Sleep(700 * time.Millisecond)
			}
			p.lan.open()
			time.Sleep(5 * time.Second)
			wrong = w.end()
		})
		return wrong
	}
	lost := 0
	for seed := range uint64(8) {
		for _, s := range held(sound, seed) {
			t.Errorf("seed %d: %s", seed, s)
		}
		lost += len(held(noFence, seed))
	}
	if lost == 0 {
		t.Error("a target without a unit attention for the new term lost nothing: the test tries nothing")
	}
}
