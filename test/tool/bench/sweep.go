package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// The sizes and depths of the sweep: cached random reads, beside raw pread of the same size and depth.
var (
	sweepSizes  = []int{4 << 10, 6 << 10, 8 << 10, 12 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10}
	sweepDepths = []int{8, 32}
)

// maxFall is how much of the ratio to raw pread may be lost from one size to the next.
const maxFall = 0.1

// sweepLine is the results of one depth, by size.
type sweepLine struct {
	Depth  int       `json:"depth"`
	Points []*result `json:"points"`
}

func benchSweep(dir string, o options, report map[string]any) (missed []error, err error) {
	var lines []*sweepLine
	var all []*pairing
	err = besideRaw(dir, o, func(raw *rawPeer, s *ours) error {
		for _, d := range sweepDepths {
			l := &sweepLine{Depth: d}
			for _, size := range sweepSizes {
				w := work{size: size, depth: d}
				if !strings.Contains(w.String(), o.only) {
					continue
				}
				r := &result{Work: w.String(), work: w}
				l.Points = append(l.Points, r)
				all = append(all, &pairing{r: r, theirs: raw, ours: s})
			}
			lines = append(lines, l)
		}
		return together(all, o)
	})
	if err != nil {
		return nil, err
	}
	for _, l := range lines {
		for i, r := range l.Points {
			r.Ratio = median(r.Rounds) // of what was measured within a second or two
			if i > 0 {
				r.Bar = (1 - maxFall) * l.Points[i-1].Ratio
			}
		}
		missed = append(missed, cliffs(l)...)
	}
	printSweep(lines)
	report["sweep"] = lines
	return missed, nil
}

// cliffs are the steps of a line at which the ratio falls by more than it may.
func cliffs(l *sweepLine) (missed []error) {
	for i := 1; i < len(l.Points); i++ {
		a, b := l.Points[i-1], l.Points[i]
		if b.Ratio < (1-maxFall)*a.Ratio {
			missed = append(missed, fmt.Errorf("sweep, %s: the ratio falls from %.2f to %.2f, %.2f is the bar", b.Work, a.Ratio, b.Ratio, (1-maxFall)*a.Ratio))
		}
	}
	return missed
}

func printSweep(lines []*sweepLine) {
	fmt.Printf("\ncached random read over iSER against size and depth, beside raw pread; no ratio may be more than %.0f %% below the one before\n", 100*maxFall)
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "work\traw pread\tSluice\tratio\tat least\tspread\tCPU us/IO raw\tSluice\twake-ups/IO client\tsluiced\traw\tmachine")
	for _, l := range lines {
		for _, r := range l.Points {
			fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.2f\t%.0f %%\t%.1f\t%.1f\t%.3f\t%.3f\t%.3f\t%s\n", r.Work, show(r.Raw, r.work), show(r.Sluice, r.work), r.Ratio, r.Bar,
				100*spread(r.Rounds), r.RawCPU, r.SluiceCPU, r.Wakes.Client, r.Wakes.Server, r.RawWakes.Client+r.RawWakes.Server, r.Machine)
		}
	}
	t.Flush()
}
