// Package fioreport makes one report, a page and a JSON file, of what fio measured in several places: through sockets, on
// devices, on mounts, here and in guests of the lab.
package fioreport

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Side is what fio measured in one direction.
type Side struct {
	IOs       int64   `json:"ios"`
	IOPS      float64 `json:"iops"`
	Bandwidth float64 `json:"bytes_per_second"`
	P50       int64   `json:"latency_p50_ns"`
	P99       int64   `json:"latency_p99_ns"`
	P999      int64   `json:"latency_p99_9_ns"`
	Max       int64   `json:"latency_max_ns"`
}

// Result is one job in one place.
type Result struct {
	Place   string `json:"place"` // e.g. "nbd socket, iSER"
	Job     string `json:"job"`
	Pattern string `json:"rw"`
	Block   string `json:"bs"`
	Depth   string `json:"iodepth"`
	Errors  int    `json:"errors"`
	Verify  bool   `json:"verify,omitempty"`
	Read    Side   `json:"read"`
	Write   Side   `json:"write"`
}

// Report is all of them, with what a reader has to know about where they come from.
type Report struct {
	Title   string    `json:"title"`
	When    time.Time `json:"when"`
	Machine string    `json:"machine"`
	Notes   []string  `json:"notes,omitempty"`
	Results []Result  `json:"results"`
}

type fioSide struct {
	IOPS  float64 `json:"iops"`
	Bytes float64 `json:"bw_bytes"`
	Total int64   `json:"total_ios"`
	CLat  fioLat  `json:"clat_ns"`
}

type fioLat struct {
	Max        float64            `json:"max"`
	Percentile map[string]float64 `json:"percentile"`
}

func (s *fioSide) side() Side {
	at := func(p string) int64 { return int64(s.CLat.Percentile[p]) }
	return Side{IOs: s.Total, IOPS: s.IOPS, Bandwidth: s.Bytes, P50: at("50.000000"), P99: at("99.000000"), P999: at("99.900000"), Max: int64(s.CLat.Max)}
}

// Parse reads what fio --output-format=json wrote.
func Parse(place string, b []byte) ([]Result, error) {
	var f struct {
		Jobs []struct {
			Name    string            `json:"jobname"`
			Error   int               `json:"error"`
			Options map[string]string `json:"job options"`
			Read    fioSide           `json:"read"`
			Write   fioSide           `json:"write"`
		} `json:"jobs"`
		Global map[string]string `json:"global options"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("fio's output for %s: %w", place, err)
	}
	if len(f.Jobs) == 0 {
		return nil, fmt.Errorf("fio's output for %s has no jobs", place)
	}
	var out []Result
	for _, j := range f.Jobs {
		opt := func(keys ...string) string {
			for _, k := range keys {
				for _, m := range []map[string]string{j.Options, f.Global} {
					if v := m[k]; v != "" {
						return v
					}
				}
			}
			return "?"
		}
		out = append(out, Result{Place: place, Job: j.Name, Pattern: opt("rw", "readwrite"), Block: opt("bs", "blocksize", "bsrange"), Depth: opt("iodepth"),
			Errors: j.Error, Verify: opt("verify") != "?", Read: j.Read.side(), Write: j.Write.side()})
	}
	return out, nil
}

// ParseDir reads all PLACE.JOB.json files of a directory; names gives places their titles.
func ParseDir(dir string, places []string, names map[string]string) ([]Result, error) {
	var out []Result
	for _, p := range places {
		files, err := filepath.Glob(filepath.Join(dir, p+".*.json"))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("fio left no results for %s", p)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			rs, err := Parse(names[p], b)
			if err != nil {
				return nil, err
			}
			out = append(out, rs...)
		}
	}
	return out, nil
}

// Check fails when a job ended with an error, or did nothing.
func (r *Report) Check() error {
	var errs []error
	for _, x := range r.Results {
		switch {
		case x.Errors != 0:
			errs = append(errs, fmt.Errorf("%s: %s ended with error %d", x.Place, x.Job, x.Errors))
		case x.Read.IOs+x.Write.IOs == 0:
			errs = append(errs, fmt.Errorf("%s: %s did nothing", x.Place, x.Job))
		case x.Verify && x.Read.IOs == 0:
			errs = append(errs, fmt.Errorf("%s: %s read nothing back", x.Place, x.Job))
		}
	}
	return errors.Join(errs...)
}

// Write leaves report.md and report.json in dir.
func (r *Report) Write(dir string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, "report.json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "report.md"), []byte(r.page()), 0o644))
}

func (r *Report) page() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s, %s.\n", r.Title, r.When.UTC().Format("2006-01-02 15:04 MST"), r.Machine)
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	var places []string
	by := map[string][]Result{}
	for _, x := range r.Results {
		if by[x.Place] == nil {
			places = append(places, x.Place)
		}
		by[x.Place] = append(by[x.Place], x)
	}
	for _, p := range places {
		fmt.Fprintf(&b, "\n## %s\n\n| job | direction | bs | depth | IOPS | MB/s | p50 | p99 | p99.9 | max |\n| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n", p)
		for _, x := range by[p] {
			for _, s := range []struct {
				name string
				Side
			}{{"read", x.Read}, {"write", x.Write}} {
				if s.IOs > 0 {
					fmt.Fprintf(&b, "| %s | %s | %s | %s | %.0f | %.1f | %s | %s | %s | %s |\n", x.Job, s.name, x.Block, x.Depth, s.IOPS, s.Bandwidth/1e6,
						Micros(s.P50), Micros(s.P99), Micros(s.P999), Micros(s.Max))
				}
			}
			if x.Verify {
				verdict := "every block written was read back with the right checksum"
				if x.Errors != 0 {
					verdict = "**failed**"
				}
				fmt.Fprintf(&b, "| %s | | | | %s | | | | | |\n", x.Job, verdict)
			}
		}
	}
	return b.String()
}

// Micros writes nanoseconds as microseconds with three digits.
func Micros(ns int64) string {
	us := float64(ns) / 1e3
	switch {
	case us < 10:
		return strconv.FormatFloat(us, 'f', 2, 64) + " us"
	case us < 100:
		return strconv.FormatFloat(us, 'f', 1, 64) + " us"
	case us < 10_000:
		return strconv.FormatFloat(us, 'f', 0, 64) + " us"
	}
	return strconv.FormatFloat(us/1e3, 'f', 0, 64) + " ms"
}

// Print writes a short table for a terminal.
func (r *Report) Print() {
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PLACE\tJOB\tREAD/s\tMB/s\tP99\tWRITE/s\tMB/s\tP99")
	for _, x := range r.Results {
		cells := func(s Side) string {
			if s.IOs == 0 {
				return "-\t-\t-"
			}
			return fmt.Sprintf("%.0f\t%.1f\t%s", s.IOPS, s.Bandwidth/1e6, Micros(s.P99))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", x.Place, x.Job, cells(x.Read), cells(x.Write))
	}
	_ = t.Flush() // a terminal that is gone wants no table
}

// Machine describes this one.
func Machine(cpus int) string {
	b, _ := os.ReadFile("/proc/sys/kernel/osrelease") // without it the kernel stays unnamed
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	return fmt.Sprintf("%d processors, Linux %s, load average at the start %s", cpus, strings.TrimSpace(string(b)), first)
}
