package main

import (
	"fmt"
	"slices"
	"time"
)

// pairing is two peers that take turns at one work.
type pairing struct {
	r            *result
	theirs, ours runner
	a, b         []float64 // what each did a second, by round
	aCost, bCost cost
}

// sideBySide runs rounds of two peers in turn: theirs is what ours is compared with.
func sideBySide(r *result, theirs, ours runner, o options) error {
	return together([]*pairing{{r: r, theirs: theirs, ours: ours}}, o)
}

// together runs a round of each pairing in turn, until each has all of its rounds: what else the machine does meanwhile meets all of them.
func together(l []*pairing, o options) error {
	for _, p := range l {
		for _, who := range []runner{p.theirs, p.ours} {
			if _, _, err := who.run(p.r.work, o.each/2); err != nil { // warm up
				return fmt.Errorf("%s: %w", p.r.work, err)
			}
		}
	}
	for range o.rounds {
		for _, p := range l {
			if err := p.round(o); err != nil {
				return fmt.Errorf("%s: %w", p.r.work, err)
			}
		}
	}
	for _, p := range l {
		p.end()
	}
	return nil
}

// round measures both. What the machine below took much time of is measured again, a few times at most.
func (p *pairing) round(o options) error {
	return p.r.Machine.quiet(func() error {
		var a, b cost
		n, took, err := a.of(p.theirs, p.r.work, o.each)
		if err != nil {
			return err
		}
		m, took2, err := b.of(p.ours, p.r.work, o.each)
		if err != nil {
			return err
		}
		p.a, p.b = append(p.a, float64(n)/took.Seconds()), append(p.b, float64(m)/took2.Seconds())
		p.aCost.add(a)
		p.bCost.add(b)
		return nil
	}, func() {
		p.a, p.b = p.a[:len(p.a)-1], p.b[:len(p.b)-1]
	})
}

// end makes the result of the rounds.
func (p *pairing) end() {
	r := p.r
	r.Size = r.work.size
	r.Raw, r.Sluice = median(p.a), median(p.b)
	r.Ratio = over(r.Sluice, r.Raw)
	r.Rounds = ratios(p.b, p.a)
	r.RawCPU, r.SluiceCPU = p.aCost.cpuPerIO(), p.bCost.cpuPerIO()
	r.RawWakes, r.Wakes = p.aCost.wakesPerIO(), p.bCost.wakesPerIO()
}

// ratios are those of each round.
func ratios(ours, theirs []float64) []float64 {
	var l []float64
	for i := range ours {
		l = append(l, over(ours[i], theirs[i]))
	}
	return l
}

// over is a/b, or 0 where there is no b: what was too little to be counted has no ratio.
func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// spread is how far the middle half of the values lies apart, as a share of their median: the noise of a figure.
func spread(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) < 2 {
		return 0
	}
	lo, hi := s[len(s)/4], s[len(s)-1-len(s)/4]
	return over(hi-lo, median(s))
}

// cost is what some I/Os took of the two processes: this one, where it is the client, comes first.
type cost struct {
	n    int
	cpu  time.Duration
	sums [2]uint64 // wake-ups of client and server
}

// of runs a work and counts.
func (c *cost) of(who runner, w work, d time.Duration) (int, time.Duration, error) {
	pids := who.pids()
	cpu, before := cpuTimes(pids), switches(pids)
	n, took, err := who.run(w, d)
	after := switches(pids)
	c.n, c.cpu = n, cpuTimes(pids)-cpu
	for i := range after {
		c.sums[min(i, 1)] += after[i] - min(before[i], after[i])
	}
	return n, took, err
}

func (c *cost) add(o cost) {
	c.n, c.cpu = c.n+o.n, c.cpu+o.cpu
	for i := range c.sums {
		c.sums[i] += o.sums[i]
	}
}

func (c *cost) cpuPerIO() float64 { return float64(c.cpu.Microseconds()) / float64(max(c.n, 1)) }

func (c *cost) wakesPerIO() wakes {
	n := float64(max(c.n, 1))
	return wakes{Client: float64(c.sums[0]) / n, Server: float64(c.sums[1]) / n}
}
