package twohosts

import (
	"strconv"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/test/lib/storm"
)

// faults does something bad several times, and undoes it.
func (r *round) faults() {
	steps := 5
	if storm.Long() {
		steps = 8
	}
	all := []struct {
		name string
		do   func()
	}{{"cut", r.cut}, {"silence", r.silence}, {"strand", r.strand}, {"kill", r.kill}, {"power", r.power}, {"reset", r.reset}, {"reset", r.reset},
		{"preempt", r.preempt}, {"groups", r.groups}, {"remap", r.remap}}
	r.rnd.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
	r.pause(100 * time.Millisecond)
	for n := range steps {
		f := all[n%len(all)]
		begin := r.now()
		f.do()
		r.t.Logf("%s from %d to %d ms", f.name, begin/1e6, r.now()/1e6)
		r.pause(150 * time.Millisecond)
	}
}

// some wires of one host or of both, most often not all of them. The stranger's is not cut: libiscsi logs in again with another
// ISID, which is no fence, and may find its old write on its new one.
func (r *round) some() []*wire {
	var l []*wire
	for _, ws := range r.wires[:2] {
		switch r.rnd.IntN(4) {
		case 0:
			l = append(l, ws...)
		case 1:
		default:
			l = append(l, ws[r.rnd.IntN(len(ws))])
		}
	}
	return l
}

func (r *round) cut() {
	l := r.some()
	for _, w := range l {
		w.cut(r.rnd.IntN(2) == 0)
		r.counts["cuts"]++
	}
	r.pause(400 * time.Millisecond)
	mend(l)
}

func mend(l []*wire) {
	for _, w := range l {
		w.mend()
	}
}

func (r *round) silence() {
	l := r.some()
	which := [][]int{{up}, {down}, {up, down}}[r.rnd.IntN(3)]
	theirs := r.rnd.IntN(3) == 0
	for _, w := range l {
		w.hold(which...)
		r.counts["silences"]++
	}
	if theirs {
		r.wires[2][0].hold(which...)
		r.counts["silences"]++
	}
	r.pause([]time.Duration{300 * time.Millisecond, 2500 * time.Millisecond}[r.rnd.IntN(2)])
	all := r.rnd.IntN(2) == 0
	for _, w := range l {
		if all {
			w.cut(false)
		}
	}
	mend(append(l, r.wires[2][0]))
}

// strand has commands arrive at the target long after their host has lost the connection. Where the host does not come back there
// first, it has to end them over another path before it sends them again.
func (r *round) strand() {
	l := r.some()
	for _, w := range l {
		w.hold(up)
	}
	r.pause(50 * time.Millisecond)
	away := r.rnd.IntN(3) > 0
	for _, w := range l {
		w.strand(away)
		r.counts["stranded connections"]++
	}
	r.pause(500 * time.Millisecond)
	for _, w := range l {
		if away {
			w.deliver()
		} else {
			w.cut(away)
		}
	}
	r.pause(100 * time.Millisecond)
	mend(l)
}

func (r *round) kill() {
	r.Kill()
	r.counts["kills"]++
	r.pause(200 * time.Millisecond)
	r.up()
}

// reset has a third host end the commands of all.
func (r *round) reset() {
	th, err := newThird(r.portal(r.rnd.IntN(portals)))
	if err != nil {
		r.t.Fatal(err)
	}
	defer th.close()
	for range 1 + r.rnd.IntN(20) {
		f := iscsi.LogicalUnitReset
		if r.rnd.IntN(4) == 0 {
			f = iscsi.TargetWarmReset
		}
		if err := th.reset(f); err != nil {
			r.t.Fatal(err)
		}
		r.counts["resets"]++
		r.pause(20 * time.Millisecond)
	}
}

// groups changes the access states, and leaves all well.
func (r *round) groups() {
	states := []string{"active/optimized", "active/non-optimized", "standby", "unavailable", "transitioning"}
	for range 1 + r.rnd.IntN(4) {
		r.sluice("target", "set-group", iqn, strconv.Itoa(1+r.rnd.IntN(2)), states[r.rnd.IntN(len(states))])
		r.counts["access states"]++
		r.pause(200 * time.Millisecond)
	}
	for _, g := range []string{"1", "2"} {
		r.sluice("target", "set-group", iqn, g, states[r.rnd.IntN(2)])
	}
}

// remap puts another volume in the place of the hosts', which libiscsi would not notice.
func (r *round) remap() {
	r.alien.kill(false)
	r.alien.gate.Lock()
	defer r.alien.gate.Unlock()
	r.alien.gone()
	r.remapped.Store(true)
	r.sluice("target", "unmap", iqn, "0")
	if r.rnd.IntN(2) == 0 {
		r.pause(50 * time.Millisecond)
	}
	r.sluice("target", "map", iqn, "0", "other")
	r.pause(300 * time.Millisecond)
	r.sluice("target", "unmap", iqn, "0")
	r.sluice("target", "map", iqn, "0", "shared")
	r.counts["remaps"]++
}
