package twohosts

import (
	"time"

	"github.com/sluice-storage/sluice/test/storm"
)

// faults does something bad several times, and undoes it.
func (r *round) faults() {
	steps := 5
	if storm.Long() {
		steps = 8
	}
	all := []func(){r.cut, r.cut, r.silence, r.strand, r.kill}
	r.pause(100 * time.Millisecond)
	for range steps {
		all[r.rnd.IntN(len(all))]()
		r.pause(150 * time.Millisecond)
	}
}

// some wires of one host or of both, most often not all of them.
func (r *round) some() []*wire {
	var l []*wire
	for _, ws := range r.wires {
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
	for _, w := range l {
		w.hold(which...)
		r.counts["silences"]++
	}
	r.pause([]time.Duration{300 * time.Millisecond, 2500 * time.Millisecond}[r.rnd.IntN(2)])
	if r.rnd.IntN(2) == 0 {
		for _, w := range l {
			w.cut(false)
		}
	}
	mend(l)
}

// strand has commands arrive at the target long after their host has lost the connection.
func (r *round) strand() {
	l := r.some()
	for _, w := range l {
		w.hold(up)
	}
	r.pause(50 * time.Millisecond)
	for _, w := range l {
		w.strand()
		r.counts["stranded connections"]++
	}
	// New connections pass.
	for _, w := range l {
		w.mu.Lock()
		w.mute = [ways]bool{}
		w.mu.Unlock()
	}
	r.pause(500 * time.Millisecond)
	mend(l)
}

func (r *round) kill() {
	r.Kill()
	r.counts["kills"]++
	r.pause(200 * time.Millisecond)
	r.up()
}
