// Command bench measures Sluice on loopback. Its parts:
//
//	block     blocks over iSER beside "raw pread" (raw.go)
//	sweep     the same against block size and depth, where no step may fall off (sweep.go)
//	latency   one request at a time, beside raw pread in the same wait mode (latency.go)
//	shared    blocks over iSER through shared memory, beside one thread that calls preadv2 (shared.go)
//	direct    a volume past the page cache beside fio on its file (direct.go)
//	sessions  idle sessions beside busy ones (sessions.go)
//	scale     1 to 1,000 sessions of one volume, 1 to 256 volumes (scale.go)
//	tgt       blocks over TCP beside tgt, with one client (tgt.go)
//	staging   placement beside a copy that the target need not make (staging.go)
//	nbd       fio through the NBD face of a volume beside qemu-nbd and nbdkit on the file itself (nbd.go)
//	nfs       files over RDMA beside raw pread, and over TCP beside nfs-ganesha with one libnfs client (nfs.go)
//
// Rounds of the two alternate, and a ratio of medians is what counts, since absolute figures drift with the machine. A round of which the
// machine below took much time is repeated (machine.go). For blocks it also counts heap allocations and wake-ups per I/O, in this process and in
// sluiced. -page leaves a page with plots (page.go); -baseline compares with the figures of an earlier run (baseline.go).
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

const rawEnv = "SLUICE_BENCH_RAW"

func main() {
	if path := os.Getenv(rawEnv); path != "" {
		if err := rawServerMain(path); err != nil {
			fmt.Fprintln(os.Stderr, "raw server:", err)
			os.Exit(1)
		}
		return
	}
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each measurement")
	flag.DurationVar(&o.each, "time", 700*time.Millisecond, "length of one measurement")
	flag.IntVar(&o.allocs, "allocs", 100_000, "I/Os over which allocations are counted, 0 for none")
	flag.StringVar(&o.daemon, "sluiced", "bin/sluiced", "the daemon to measure")
	flag.StringVar(&o.sluice, "sluice", "bin/sluice", "the client whose NBD face is measured")
	flag.StringVar(&o.engine, "engine", "file", "its engine: file, mem, null")
	flag.StringVar(&o.crc, "crc", "on", "fabric.crc of the daemon: on means off over loopback, always means on")
	flag.StringVar(&o.only, "only", "", "measure only lines that contain this")
	flag.StringVar(&o.profile, "profile", "", "directory for CPU profiles of both processes")
	flag.StringVar(&o.json, "json", "", "write the results of all parts, and the bars that are missed, to this file")
	flag.StringVar(&o.part, "part", "all", "what to measure, with commas between: "+partNames()+", or all")
	flag.StringVar(&o.page, "page", "", "leave a page with plots, and the results, in this directory")
	flag.StringVar(&o.baseline, "baseline", "", "compare ratios with those of this file, which -write-baseline has made")
	flag.StringVar(&o.writeBaseline, "write-baseline", "", "write the ratios to this file, in place of those that it has of the same rows")
	flag.StringVar(&o.staged, "staged", "", "of the part staging: the daemon that copies (default: it is built)")
	flag.StringVar(&o.volume, "volume", "", "of the part direct: a file of 4 GiB, all written, on the disk to be measured; what it has is lost (default: one is made)")
	flag.IntVar(&o.idle, "idle", 1000, "idle sessions beside the busy ones")
	flag.IntVar(&o.busy, "busy", 64, "busy sessions")
	flag.BoolVar(&o.enforce, "enforce", false, "exit with 1 when a bar is missed or a part could not be measured")
	flag.Parse()
	if err := bench(o); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

type options struct {
	rounds, allocs      int
	each                time.Duration
	daemon, engine, crc string
	sluice              string
	only, profile, json string
	part                string
	idle, busy          int
	enforce             bool
	page                string
	baseline            string
	writeBaseline       string
	staged              string
	direct              bool // the volume that is served
	shared              bool // through shared memory
	volume              string
}

// result is one line of the table, for -json too.
type result struct {
	Work         string    `json:"work"`
	Size         int       `json:"size"`
	Raw          float64   `json:"raw_per_second"` // of what it is compared with
	Sluice       float64   `json:"sluice_per_second"`
	Ratio        float64   `json:"ratio"`
	Bar          float64   `json:"bar"`
	RawCPU       float64   `json:"raw_cpu_us_per_io"`
	SluiceCPU    float64   `json:"sluice_cpu_us_per_io"`
	AllocsClient float64   `json:"allocs_per_io_client"`
	AllocsDaemon float64   `json:"allocs_per_io_daemon"`
	Wakes        wakes     `json:"wakes_per_io"`
	RawWakes     wakes     `json:"raw_wakes_per_io"`
	Machine      machine   `json:"machine"`
	Rounds       []float64 `json:"round_ratios"`
	work         work
}

func bench(o options) (err error) {
	dir, err := os.MkdirTemp("", "sluice-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	report := map[string]any{}
	var missed []error
	wanted, err := wantedParts(o.part)
	if err != nil {
		return err
	}
	for _, p := range wanted {
		if os.Getenv(nfsEnv) != "" && p.name != "nfs" {
			continue // the process inside is there for that alone
		}
		m, err := p.run(dir, o, report)
		if err != nil {
			return fmt.Errorf("part %s: %w", p.name, err)
		}
		missed = append(missed, m...)
	}
	said := []string{}
	for _, err := range missed {
		said = append(said, err.Error())
	}
	report["missed"] = said
	inside := os.Getenv(nfsEnv)
	if path := cmp.Or(inside, o.json); path != "" {
		b, err := json.MarshalIndent(report, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
			return err
		}
	}
	if inside != "" {
		return nil // the process outside says what is missed
	}
	worse, err := afterwards(o, report)
	if err != nil {
		return err
	}
	missed = append(missed, worse...)
	if o.enforce {
		return errors.Join(missed...)
	}
	for _, err := range missed {
		fmt.Println("below the bar:", err)
	}
	return nil
}

func benchBlocks(dir string, o options, report map[string]any) (missed []error, err error) {
	var results []*result
	err = besideRaw(dir, o, func(raw *rawPeer, s *ours) error {
		for _, w := range works {
			if !strings.Contains(w.String(), o.only) {
				continue
			}
			r := &result{Work: w.String(), Bar: w.bar, work: w}
			if err := measure(r, raw, s, o); err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			results = append(results, r)
		}
		print(fmt.Sprintf("iSER on loopback, sluiced (engine %s) and this client as two processes; CRC %s on both sides of every ratio", o.engine, s.crc), "raw pread", results)
		report["crc"], report["engine"], report["results"] = s.crc, o.engine, results
		return nil
	})
	return judge(results), err
}

// besideRaw starts raw pread and a daemon, each with a file of its own, for f.
func besideRaw(dir string, o options, f func(*rawPeer, *ours) error) (err error) {
	volume, raws := filepath.Join(dir, "volume"), filepath.Join(dir, "raw")
	for _, p := range []string{volume, raws} {
		if err := fill(p); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.Remove(p)) }()
	}
	raw, err := startRaw(raws)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	s, err := startSluice(dir, volume, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	return f(raw, s)
}

func measure(r *result, theirs runner, s *ours, o options) error {
	if err := sideBySide(r, theirs, s, o); err != nil {
		return err
	}
	if o.profile != "" {
		if err := s.profile(r.Work, r.work, o.profile); err != nil {
			return err
		}
	}
	if o.allocs == 0 {
		return nil
	}
	var err error
	r.AllocsClient, r.AllocsDaemon, err = s.allocations(r.work, o.allocs)
	return err
}

func print(title, theirs string, results []*result) {
	fmt.Println(title)
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "work\t%s\tSluice\tratio\tbar\tCPU us/IO %[1]s\tSluice\tallocs/IO client\tsluiced\twake-ups/IO client\tsluiced\t%[1]s\tmachine\n", theirs)
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.2f\t%.1f\t%.1f\t%.4f\t%.4f\t%.3f\t%.3f\t%.3f\t%s\n", r.Work, show(r.Raw, r.work), show(r.Sluice, r.work), r.Ratio, r.Bar,
			r.RawCPU, r.SluiceCPU, r.AllocsClient, r.AllocsDaemon, r.Wakes.Client, r.Wakes.Server, r.RawWakes.Client+r.RawWakes.Server, r.Machine)
	}
	if err := t.Flush(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func show(rate float64, w work) string {
	return fmt.Sprintf("%.0f/s %.2f GB/s", rate, rate*float64(w.size)/1e9)
}

// maxAllocs is the bar for heap allocations per I/O in each process.
const maxAllocs = 0.01

func judge(results []*result) (missed []error) {
	for _, r := range results {
		if r.Ratio < r.Bar {
			missed = append(missed, fmt.Errorf("%s: a ratio of %.2f, %.2f is the bar", r.Work, r.Ratio, r.Bar))
		}
		if r.AllocsClient > maxAllocs || r.AllocsDaemon > maxAllocs {
			missed = append(missed, fmt.Errorf("%s: %.4f and %.4f allocations an I/O, %.2f is the bar", r.Work, r.AllocsClient, r.AllocsDaemon, maxAllocs))
		}
	}
	return missed
}

// fill makes a file with every block written, so that reads come from the page cache.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for range volumeSize / len(b) {
		if _, err := f.Write(b); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	return f.Close()
}
