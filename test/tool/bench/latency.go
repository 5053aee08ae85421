package main

import (
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
)

// maxLatency is how much longer than a raw one a request may take that is alone, where both sides of both block in the kernel until there is
// something for them.
const maxLatency = 1.5

var latencyWorks = []work{
	{false, 4 << 10, 1, 0},
	{true, 4 << 10, 1, 0},
	{false, 128 << 10, 1, 0},
	{true, 128 << 10, 1, 0},
}

// latency is one line: means, since there is one request at a time and the rate says all.
type latency struct {
	Work   string    `json:"work"`
	Raw    float64   `json:"raw_us"`
	Sluice float64   `json:"sluice_us"`
	Ratio  float64   `json:"ratio"` // of the two, above 1 where ours takes longer
	Bar    float64   `json:"bar"`
	Wakes  wakes     `json:"wakes_per_io"`
	Rounds []float64 `json:"round_ratios"`
}

func benchLatency(dir string, o options, report map[string]any) (missed []error, err error) {
	var results []*result
	err = besideRaw(dir, o, func(raw *rawPeer, s *ours) error {
		var all []*pairing
		for _, w := range latencyWorks {
			if !strings.Contains(w.String(), o.only) {
				continue
			}
			r := &result{Work: w.String(), work: w}
			results = append(results, r)
			all = append(all, &pairing{r: r, theirs: raw, ours: s})
		}
		return together(all, o)
	})
	if err != nil {
		return nil, err
	}
	var lines []*latency
	fmt.Println("\none request at a time over iSER, beside raw pread; both block")
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "work\traw pread us\tSluice us\tratio\tbar\twake-ups/IO client\tsluiced\tmachine")
	for _, r := range results {
		l := latencyOf(r)
		lines = append(lines, l)
		if l.Bar > 0 && l.Ratio > l.Bar {
			missed = append(missed, fmt.Errorf("latency, %s: %.2f times that of raw, %.1f is the bar", l.Work, l.Ratio, l.Bar))
		}
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.2f\t%.1f\t%.2f\t%.2f\t%s\n", l.Work, l.Raw, l.Sluice, l.Ratio, l.Bar, l.Wakes.Client, l.Wakes.Server, r.Machine)
	}
	t.Flush()
	report["latency"] = lines
	return missed, nil
}

// latencyOf turns rates of one request at a time into times.
func latencyOf(r *result) *latency {
	l := &latency{Work: r.Work, Raw: over(1e6, r.Raw), Sluice: over(1e6, r.Sluice), Wakes: r.Wakes}
	for _, v := range r.Rounds {
		l.Rounds = append(l.Rounds, over(1, v))
	}
	l.Ratio = median(l.Rounds)
	if r.work.size == 4<<10 {
		l.Bar = maxLatency
	}
	return l
}
