package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// The argument of RFC 4297: what a copy of all payload at the target costs. Both daemons are of one source; the one with the build tag staging puts
// package staged before its volumes. Processor time is that of the daemon alone, for a gigabyte (10^9 bytes).
var stagingWorks = []work{
	{false, 4 << 10, 32, 0},
	{true, 4 << 10, 32, 0},
	{false, 32 << 10, 16, 0},
	{true, 32 << 10, 16, 0},
	{false, 128 << 10, 16, 0},
	{true, 128 << 10, 16, 0},
	{false, 1 << 20, 4, 0},
	{true, 1 << 20, 4, 0},
}

// stagingResult is one line of the table.
type stagingResult struct {
	Work      string    `json:"work"`
	Size      int       `json:"size"`
	Staged    float64   `json:"staged_per_second"`
	Placed    float64   `json:"placed_per_second"`
	Ratio     float64   `json:"ratio"`
	Rounds    []float64 `json:"round_ratios"`
	StagedCPU float64   `json:"staged_cpu_s_per_gb"`
	PlacedCPU float64   `json:"placed_cpu_s_per_gb"`
	CPURatio  float64   `json:"cpu_ratio"`
	Machine   machine   `json:"machine"`
	work      work
}

func benchStaging(dir string, o options, report map[string]any) (_ []error, err error) {
	binary := o.staged
	if binary == "" {
		binary = filepath.Join(dir, "sluiced-staging")
		build := exec.Command("go", "build", "-trimpath", "-tags", "staging", "-o", binary, "./cmd/sluiced")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go build ./cmd/sluiced (run this from the top of the tree): %w\n%s", err, out)
		}
	}
	var both [2]*ours
	for i, daemon := range []string{binary, o.daemon} {
		sub := filepath.Join(dir, []string{"staged", "placed"}[i])
		if err := os.Mkdir(sub, 0o700); err != nil {
			return nil, err
		}
		volume := filepath.Join(sub, "volume")
		if err := fill(volume); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(volume)) }()
		of := o
		of.daemon = daemon
		s, err := startSluice(sub, volume, of)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, s.close()) }()
		how, err := s.how()
		if err != nil {
			return nil, err
		}
		if copies := strings.Contains(how, "copy of all payload"); copies != (i == 0) {
			return nil, fmt.Errorf("%s serves its volume %q: it is not the daemon that was meant", daemon, how)
		}
		both[i] = s
	}
	var all []*pairing
	for _, w := range stagingWorks {
		if strings.Contains(w.String(), o.only) {
			all = append(all, &pairing{r: &result{Work: w.String(), work: w}, theirs: served{both[0]}, ours: served{both[1]}})
		}
	}
	if err := together(all, o); err != nil {
		return nil, err
	}
	var results []*stagingResult
	for _, p := range all {
		results = append(results, stagingOf(p.r))
	}
	printStaging(results)
	report["staging"] = results
	return nil, nil
}

// served is ours, of whose time only the daemon's counts.
type served struct{ *ours }

func (s served) pids() []int { return []int{s.cmd.Process.Pid} }

func stagingOf(r *result) *stagingResult {
	gb := 1e3 / float64(r.work.size) // of microseconds an I/O, seconds a gigabyte
	s := &stagingResult{Work: r.Work, Size: r.work.size, Staged: r.Raw, Placed: r.Sluice, Rounds: r.Rounds, Ratio: median(r.Rounds), StagedCPU: r.RawCPU * gb, PlacedCPU: r.SluiceCPU * gb,
		Machine: r.Machine, work: r.work}
	s.CPURatio = over(s.PlacedCPU, s.StagedCPU)
	return s
}

func printStaging(results []*stagingResult) {
	fmt.Println("\nplacement beside a staging copy of all payload at the target (iSER, cached file)")
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "work\tstaged\tplaced\tratio\tspread\tCPU s/GB of the target, staged\tplaced\tratio\tmachine")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.0f %%\t%.3f\t%.3f\t%.2f\t%s\n", r.Work, show(r.Staged, r.work), show(r.Placed, r.work), r.Ratio, 100*spread(r.Rounds),
			r.StagedCPU, r.PlacedCPU, r.CPURatio, r.Machine)
	}
	t.Flush()
}
