// Command neighbour measures what bad peers cost a good one: its throughput and its 99th percentile beside each of them,
// as ratios to the same without, medians of several rounds. The first row has no bad peer at all: how far from 1 it is says
// how much of the others is the machine's noise. It needs no privilege.
//
// Peers and daemon share the machine. So that the daemon is measured and not the work of misbehaving, a bad peer rests
// nine times as long as it acts.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/sluice-storage/sluice/test/suite/faults"
)

const (
	barRate = 0.9 // of the throughput stays
	barP99  = 2.0 // times as long may 99 of 100 take
)

func main() {
	rounds := flag.Int("rounds", 7, "rounds, each with and without the bad peer")
	window := flag.Duration("window", 250*time.Millisecond, "how long one measurement takes")
	pause := flag.Duration("pause", 20*time.Millisecond, "the least time between two appearances of the bad peer")
	only := flag.String("peer", "", "only peers whose name contains this")
	flag.Parse()
	ok, err := run(*rounds, *window, *pause, *only)
	if err != nil {
		fmt.Fprintln(os.Stderr, "neighbour:", err)
		os.Exit(1)
	}
	if !ok {
		os.Exit(2)
	}
}

func run(rounds int, window, pause time.Duration, only string) (ok bool, err error) {
	dir, err := os.MkdirTemp("", "neighbour")
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin, err := faults.Build(dir)
	if err != nil {
		return false, err
	}
	d, err := faults.Start(bin, dir, false)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := faults.NewGood(ctx, &d.Rig)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if err := g.Works(2000); err != nil {
		return false, err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, "bad peer\ttimes\tthroughput\tp99\t")
	ok = true
	nobody := faults.Peer{Name: "nobody", Run: func(context.Context, *faults.Rig) error { return nil }}
	for _, p := range append([]faults.Peer{nobody}, faults.Peers()...) {
		if p.Name != nobody.Name && !strings.Contains(p.Name, only) {
			continue
		}
		var rates, tails []float64
		times := 0
		// Good and bad windows take turns, and each bad one is held against the good ones on both sides of it: the
		// machine drifts.
		before, beforeP99, err := g.Measure(window)
		if err != nil {
			return false, err
		}
		for range rounds {
			n, stop := misbehave(p, &d.Rig, pause)
			rate, p99, err := g.Measure(window)
			stop()
			times += n()
			if err != nil {
				return false, fmt.Errorf("beside %q: %w", p.Name, err)
			}
			after, afterP99, err := g.Measure(window)
			if err != nil {
				return false, err
			}
			rates = append(rates, 2*rate/(before+after))
			tails = append(tails, 2*float64(p99)/float64(beforeP99+afterP99))
			before, beforeP99 = after, afterP99
		}
		rate, p99 := median(rates), median(tails)
		verdict := ""
		if rate < barRate || p99 > barP99 {
			verdict, ok = "over the bar", false
		}
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.2f\t%s\n", p.Name, times, rate, p99, verdict)
		if err := w.Flush(); err != nil {
			return false, err
		}
		if err := d.Alive(); err != nil {
			return false, err
		}
	}
	return ok, nil
}

// misbehave lets a bad peer appear again and again, until stop.
func misbehave(p faults.Peer, r *faults.Rig, pause time.Duration) (times func() int, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	n := 0
	wg.Go(func() {
		for ctx.Err() == nil {
			begin := time.Now()
			once, done := context.WithTimeout(context.Background(), time.Minute)
			_ = p.Run(once, r) // whether the answer is right is what the tests ask
			done()
			n++
			select {
			case <-ctx.Done():
			case <-time.After(max(pause, 9*time.Since(begin))):
			}
		}
	})
	stop = func() { cancel(); wg.Wait() }
	return func() int { return n }, stop
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
