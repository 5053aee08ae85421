package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// A volume with direct: true over iSER beside fio on the volume's own file, which is preallocated and written once. Fio's command is
//
//	fio --name=x --rw=randread --bs=4096 --iodepth=32 --size=268435456 --norandommap --time_based --runtime=700ms
//	    --ioengine=io_uring --direct=1 --numjobs=1 --filename=FILE --randseed=ROUND
//
// with the line's rw, bs and iodepth; cold it has --size=4294967296.
//
// Warm, both visit the first 256 MiB again and again: what the disk or the machine below a guest caches is cached. Cold, they visit
// places all over 4 GiB, others each round, and the kernel has been told to drop its caches: that costs file systems' maps.
var directWorks = []work{
	{false, 4 << 10, 32, 0.85},
	{true, 4 << 10, 32, 0.85},
	{false, 128 << 10, 16, 0.85},
	{true, 128 << 10, 16, 0.5},
}

const coldSize = 4 << 30

func directFIO(file string, round int) []string {
	return []string{"--ioengine=io_uring", "--direct=1", "--numjobs=1", "--filename=" + file, fmt.Sprintf("--randseed=%d", round+1)}
}

// directResult is one line of the table, for -json too.
type directResult struct {
	Work   string    `json:"work"`
	Cold   bool      `json:"cold"`
	FIO    float64   `json:"fio_per_second"`
	Sluice float64   `json:"sluice_per_second"`
	Ratio  float64   `json:"ratio"`
	Bar    float64   `json:"bar"`
	CPU    float64   `json:"sluice_cpu_us_per_io"`
	Rounds []float64 `json:"round_ratios"`
	work   work
}

func benchDirect(dir string, o options, report map[string]any) (missed []error, err error) {
	if err := tools("the comparison of direct volumes", map[string]string{"fio": "fio"}); err != nil {
		return nil, err
	}
	volume := o.volume
	if volume == "" {
		volume = filepath.Join(dir, "direct-volume")
		if err := preallocate(volume, coldSize); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.Remove(volume)) }()
	}
	o.direct = true
	s, err := startSluice(dir, volume, o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	how, err := s.how()
	if err != nil {
		return nil, err
	}
	var results []*directResult
	for _, cold := range []bool{false, true} {
		for _, w := range directWorks {
			r := &directResult{Work: w.String(), Cold: cold, Bar: w.bar, work: w}
			if !strings.Contains(r.name(), o.only) {
				continue
			}
			if err := measureDirect(dir, volume, r, s, o); err != nil {
				return nil, fmt.Errorf("direct volume, %s: %w", w, err)
			}
			results = append(results, r)
			if r.Ratio < r.Bar {
				missed = append(missed, fmt.Errorf("direct volume, %s: a ratio of %.2f, %.2f is the bar", r.name(), r.Ratio, r.Bar))
			}
		}
	}
	report["direct"], report["direct_engine"] = results, how
	printDirect(results, how, volume, o)
	return missed, nil
}

func (r *directResult) name() string {
	return r.Work + map[bool]string{false: " warm", true: " cold"}[r.Cold]
}

// measureDirect lets fio and the volume take turns.
func measureDirect(dir, volume string, r *directResult, s *ours, o options) error {
	size := int64(volumeSize)
	if r.Cold {
		size = coldSize
	}
	w := r.work
	var theirs, mine []float64
	var cpu cpuCount
	for round := -1; round < o.rounds; round++ {
		d := o.each
		if round < 0 {
			d /= 2 // warm up
		}
		if err := drop(r.Cold); err != nil {
			return err
		}
		a, _, err := fio(dir, w, size, d, directFIO(volume, round)...)
		if err != nil {
			return err
		}
		if err := drop(r.Cold); err != nil {
			return err
		}
		s.area, s.first = size, (round+1)*7919*1024 // where it was not yet
		cpu.start(s.pids())
		n, took, err := s.run(w, d)
		if err != nil {
			return err
		}
		if round < 0 {
			continue
		}
		cpu.stop(s.pids(), n)
		b := float64(n) / took.Seconds()
		theirs, mine, r.Rounds = append(theirs, a), append(mine, b), append(r.Rounds, b/a)
	}
	r.FIO, r.Sluice, r.CPU = median(theirs), median(mine), cpu.perIO()
	r.Ratio = r.Sluice / r.FIO
	if o.profile != "" && !r.Cold {
		return s.profile(w.String(), w, o.profile)
	}
	return nil
}

// drop drops the kernel's caches, as far as this user may.
func drop(cold bool) error {
	if !cold {
		return nil
	}
	unix.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0); err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// preallocate makes a file whose blocks are all there and written.
func preallocate(path string, size int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	b := make([]byte, 4<<20)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for at := int64(0); err == nil && at < size; at += int64(len(b)) {
		_, err = f.WriteAt(b, at)
	}
	return errors.Join(err, f.Sync(), f.Close())
}

func printDirect(results []*directResult, how, volume string, o options) {
	fmt.Printf("a volume with direct: true over iSER (%s), beside one fio on its file:\n", how)
	fmt.Println("  fio", strings.Join(fioArgs(directWorks[0], volumeSize, o.each, directFIO(volume, 0)...), " "))
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "work\tfio io_uring\tSluice\tratio\tbar\tCPU us/IO Sluice, both sides")
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%.2f\t%.1f\n", r.name(), show(r.FIO, r.work), show(r.Sluice, r.work), r.Ratio, r.Bar, r.CPU)
	}
	_ = t.Flush() // a terminal that is gone wants no table
}
