package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/plot"
)

// page leaves the figures in dir for people to read: README.md, its plots, and report.json.
func (f *figures) page(dir string, report map[string]any) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	errs := []error{os.WriteFile(filepath.Join(dir, "report.json"), append(b, '\n'), 0o644)}
	for name, c := range f.charts() {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name+".svg"), []byte(c.SVG()), 0o644))
	}
	text := "# Sluice, measured\n\n" + here() + "\n" + f.text()
	errs = append(errs, os.WriteFile(filepath.Join(dir, "README.md"), []byte(text), 0o644))
	return errors.Join(errs...)
}

// here is what was measured, where and when.
func here() string {
	commit := "an unknown commit"
	if out, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=12").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	kernel := "an unknown kernel"
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		kernel = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	return fmt.Sprintf("%s, %s, %d processors, %s, %s", time.Now().UTC().Format("2006-01-02"), commit, runtime.NumCPU(), kernel, runtime.Version())
}

// charts are the plots by name; a part that was not measured has none.
func (f *figures) charts() map[string]*plot.Chart {
	m := map[string]*plot.Chart{}
	if len(f.Sweep) > 0 {
		ratio := &plot.Chart{Title: "Cached random read over iSER, to raw pread", X: "block size", Y: "ratio of throughputs"}
		rate := &plot.Chart{Title: "Cached random read", X: "block size", Y: "throughput (MB/s, 10^6 bytes)"}
		calm := &plot.Chart{Title: "Wake-ups of both sides", X: "block size", Y: "wake-ups an I/O"}
		for _, c := range []*plot.Chart{ratio, rate, calm} {
			for _, r := range f.Sweep[0].Points {
				c.Ticks = append(c.Ticks, fmt.Sprintf("%dk", r.Size>>10))
			}
		}
		for _, l := range f.Sweep {
			depth := fmt.Sprintf("depth %d", l.Depth)
			add := func(c *plot.Chart, name string, of func(*result) float64) {
				c.Lines = append(c.Lines, series(name, l.Points, of))
			}
			add(ratio, depth, func(r *result) float64 { return r.Ratio })
			add(rate, depth, func(r *result) float64 { return r.Sluice * float64(r.Size) / 1e6 })
			add(rate, depth+" raw", func(r *result) float64 { return r.Raw * float64(r.Size) / 1e6 })
			add(calm, depth, func(r *result) float64 { return r.Wakes.Client + r.Wakes.Server })
			add(calm, depth+" raw", func(r *result) float64 { return r.RawWakes.Client + r.RawWakes.Server })
		}
		m["sweep-ratio"], m["sweep-rate"], m["sweep-wakes"] = ratio, rate, calm
	}
	for _, of := range []string{"sessions", "volumes"} {
		c := &plot.Chart{Title: "4 KiB reads by number of " + of, X: of, Y: "I/Os a second"}
		l := plot.Line{Name: of}
		for _, p := range f.Scale {
			if p.Of == of {
				c.Ticks, l.Values = append(c.Ticks, fmt.Sprint(p.Count)), append(l.Values, p.Rate)
			}
		}
		if len(l.Values) > 0 {
			c.Lines = []plot.Line{l}
			m["scale-"+of] = c
		}
	}
	if len(f.Staging) > 0 {
		cpu := &plot.Chart{Title: "What a copy at the target costs: processor time", X: "work", Y: "target's processor time (ms a GB)"}
		rate := &plot.Chart{Title: "What a copy at the target costs: throughput", X: "work", Y: "throughput (MB/s, 10^6 bytes)"}
		var placed, staged, placedRate, stagedRate []float64
		for _, r := range f.Staging {
			tick := shortWork(r.Work)
			cpu.Ticks, rate.Ticks = append(cpu.Ticks, tick), append(rate.Ticks, tick)
			placed, staged = append(placed, r.PlacedCPU*1e3), append(staged, r.StagedCPU*1e3)
			placedRate, stagedRate = append(placedRate, r.Placed*float64(r.Size)/1e6), append(stagedRate, r.Staged*float64(r.Size)/1e6)
		}
		cpu.Lines = []plot.Line{{Name: "placed", Values: placed}, {Name: "staged", Values: staged}}
		rate.Lines = []plot.Line{{Name: "placed", Values: placedRate}, {Name: "staged", Values: stagedRate}}
		m["staging-cpu"], m["staging-rate"] = cpu, rate
	}
	return m
}

func series(name string, points []*result, of func(*result) float64) plot.Line {
	l := plot.Line{Name: name}
	for _, r := range points {
		l.Values = append(l.Values, of(r))
	}
	return l
}

// shortWork is a work's name that fits under an axis.
func shortWork(s string) string {
	f := strings.Fields(s) // read 4 KiB depth 32
	if len(f) < 5 {
		return s
	}
	return fmt.Sprintf("%s %sk", f[0], f[1])
}

// text is the page behind its heading.
func (f *figures) text() string {
	var b strings.Builder
	drawn := f.charts()
	head := func(title string, charts []string, columns ...string) {
		fmt.Fprintf(&b, "\n## %s\n\n", title)
		for _, c := range charts {
			if drawn[c] != nil {
				fmt.Fprintf(&b, "![%s](%s.svg)\n\n", drawn[c].Title, c)
			}
		}
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat(" --- |", len(columns)))
	}
	row := func(format string, a ...any) {
		fmt.Fprintf(&b, "| "+strings.ReplaceAll(format, "\t", " | ")+" |\n", a...)
	}
	plain := func(title, peer string, l []*result) {
		if len(l) == 0 {
			return
		}
		head(title, nil, "work", peer+" /s", "Sluice /s", "ratio", "spread", "bar", "CPU us/IO "+peer, "Sluice", "wake-ups/IO client", "daemon", "machine")
		for _, r := range l {
			row("%s\t%.0f\t%.0f\t%.2f\t%.0f %%\t%.2f\t%.1f\t%.1f\t%.3f\t%.3f\t%s", r.Work, r.Raw, r.Sluice, r.Ratio, 100*spread(r.Rounds), r.Bar, r.RawCPU, r.SluiceCPU,
				r.Wakes.Client, r.Wakes.Server, r.Machine)
		}
	}
	if len(f.Baseline) > 0 {
		head("Beside the baseline", nil, "row", "before", "now", "now/before", "noise", "")
		for _, c := range f.Baseline {
			row("%s\t%.2f\t%.2f\t%.2f\t%.0f %%\t%s", c.Row, c.Old, c.New, c.Ratio, 100*c.Noise, map[bool]string{true: "worse"}[c.Worse])
		}
	}
	plain("Blocks over iSER, beside raw pread (CRC "+f.CRC+")", "raw", f.Results)
	for i, l := range f.Sweep {
		var charts []string
		if i == 0 {
			charts = []string{"sweep-ratio", "sweep-rate", "sweep-wakes"}
		}
		head(fmt.Sprintf("Against block size, depth %d", l.Depth), charts, "work", "raw /s", "Sluice /s", "ratio", "at least", "spread", "wake-ups/IO client", "daemon", "raw", "machine")
		for _, r := range l.Points {
			row("%s\t%.0f\t%.0f\t%.2f\t%.2f\t%.0f %%\t%.3f\t%.3f\t%.3f\t%s", r.Work, r.Raw, r.Sluice, r.Ratio, r.Bar, 100*spread(r.Rounds), r.Wakes.Client, r.Wakes.Server,
				r.RawWakes.Client+r.RawWakes.Server, r.Machine)
		}
	}
	if len(f.Latency) > 0 {
		head("One request at a time, both blocking", nil, "work", "raw us", "Sluice us", "ratio", "at most")
		for _, r := range f.Latency {
			row("%s\t%.1f\t%.1f\t%.2f\t%.1f", r.Work, r.Raw, r.Sluice, r.Ratio, r.Bar)
		}
	}
	plain("Blocks over iSER through shared memory, beside one thread that calls preadv2", "preadv2", f.Shared)
	if len(f.Direct) > 0 {
		head("A volume past the page cache, beside fio with io_uring", nil, "work", "fio /s", "Sluice /s", "ratio", "spread", "bar")
		for _, r := range f.Direct {
			row("%s\t%.0f\t%.0f\t%.2f\t%.0f %%\t%.2f", r.name(), r.FIO, r.Sluice, r.Ratio, 100*spread(r.Rounds), r.Bar)
		}
	}
	if len(f.Scale) > 0 {
		head("Many sessions, many volumes", []string{"scale-sessions", "scale-volumes"}, "", "", "/s", "to one", "p50 us", "p99 us", "wake-ups/IO client", "daemon")
		for _, r := range f.Scale {
			row("%d\t%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.3f\t%.3f", r.Count, r.Of, r.Rate, r.Ratio, r.P50, r.P99, r.Wakes.Client, r.Wakes.Server)
		}
	}
	if len(f.Tgt) > 0 {
		head("Blocks over TCP, beside tgt", nil, "work", "tgt /s", "Sluice /s", "ratio", "CPU s/GB tgt", "Sluice", "ratio", "at most")
		for _, r := range f.Tgt {
			row("%s\t%.0f\t%.0f\t%.2f\t%.3f\t%.3f\t%.2f\t%.1f", r.Work, r.Tgt, r.Sluice, r.Ratio, r.TgtCPU, r.SluiceCPU, r.CPURatio, r.CPUBar)
		}
	}
	if len(f.Staging) > 0 {
		head("Placement, beside a copy of all payload at the target", []string{"staging-cpu", "staging-rate"}, "work", "staged /s", "placed /s", "ratio", "spread",
			"CPU s/GB of the target, staged", "placed", "ratio")
		for _, r := range f.Staging {
			row("%s\t%.0f\t%.0f\t%.2f\t%.0f %%\t%.3f\t%.3f\t%.2f", r.Work, r.Staged, r.Placed, r.Ratio, 100*spread(r.Rounds), r.StagedCPU, r.PlacedCPU, r.CPURatio)
		}
	}
	if len(f.NBD) > 0 {
		head("fio through the NBD face, beside servers of the file itself", nil, "work", "Sluice /s", "the faster peer", "its /s", "ratio", "bar")
		for _, r := range f.NBD {
			row("%s\t%.0f\t%s\t%.0f\t%.2f\t%.2f", r.Work, r.Rates["Sluice"], r.Faster, r.Rates[r.Faster], r.Ratio, r.Bar)
		}
	}
	plain("Files over TCP, beside nfs-ganesha", "nfs-ganesha", f.NFSTCP)
	plain("Files over RDMA, beside raw pread", "raw", f.NFSRDMA)
	b.WriteString("\n## Bars that were missed\n\n")
	for _, s := range f.Missed {
		fmt.Fprintf(&b, "- %s\n", s)
	}
	if len(f.Missed) == 0 {
		b.WriteString("None.\n")
	}
	return b.String()
}
