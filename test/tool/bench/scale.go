package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
)

// How throughput and latency go with the number of sessions of one volume, and with the number of volumes that have a session each. Every
// session has two 4 KiB reads under way.
var (
	scaleSessions = []int{1, 4, 16, 64, 256, 1000}
	scaleVolumes  = []int{1, 4, 16, 64, 256}
)

// scalePoint is one number of sessions or volumes.
type scalePoint struct {
	Of     string    `json:"of"` // sessions or volumes
	Count  int       `json:"count"`
	Rate   float64   `json:"ios_per_second"`
	P50    float64   `json:"p50_us"`
	P99    float64   `json:"p99_us"`
	Ratio  float64   `json:"ratio"` // of the rate to the one of a single session
	Rounds []float64 `json:"round_ratios"`
	Wakes  wakes     `json:"wakes_per_io"`
	Mach   machine   `json:"machine"`
}

func benchScale(dir string, o options, report map[string]any) (_ []error, err error) {
	d, err := startScale(filepath.Join(dir, "scale"), slices.Max(scaleVolumes), o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	var points []*scalePoint
	for _, n := range scaleSessions {
		points = append(points, &scalePoint{Of: "sessions", Count: n})
	}
	for _, n := range scaleVolumes {
		points = append(points, &scalePoint{Of: "volumes", Count: n})
	}
	first := map[string][]float64{}
	fmt.Println("\nsessions of one volume, and volumes with a session each (iSER, 4 KiB reads of memory, two under way a session)")
	t := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\t\tIOPS\tto one\tp50 us\tp99 us\twake-ups/IO client\tsluiced\tmachine")
	for _, p := range points {
		if !strings.Contains(p.Of, o.only) {
			continue
		}
		rates, err := d.measure(p, o)
		if err != nil {
			return nil, fmt.Errorf("%d %s: %w", p.Count, p.Of, err)
		}
		if first[p.Of] == nil {
			first[p.Of] = rates
		}
		p.Rounds = ratios(rates, first[p.Of])
		p.Ratio = median(p.Rounds)
		fmt.Fprintf(t, "%d\t%s\t%.0f\t%.2f\t%.0f\t%.0f\t%.3f\t%.3f\t%s\n", p.Count, p.Of, p.Rate, p.Ratio, p.P50, p.P99, p.Wakes.Client, p.Wakes.Server, p.Mach)
	}
	t.Flush()
	report["scale"] = points
	return nil, nil
}

// scaled is a daemon with many volumes.
type scaled struct {
	ours
	port int
}

func startScale(dir string, volumes int, o options) (*scaled, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	most := slices.Max(scaleSessions) + 16
	var b strings.Builder
	fmt.Fprintf(&b, "state_dir: %s\nlog: {level: error}\nmemory: 512MiB\nlimits: {connections: %d, per_host: %d}\nportals: [{address: \"127.0.0.1:%d\"}]\nvolumes:\n",
		dir, most, most, port)
	for i := range volumes {
		fmt.Fprintf(&b, "  - {name: v%d, engine: mem, size: 16MiB}\n", i)
	}
	b.WriteString("targets:\n")
	for i := range volumes {
		fmt.Fprintf(&b, "  - {name: \"%s-%d\", luns: [{lun: 0, volume: v%d}]}\n", iqn, i, i)
	}
	d := &scaled{port: port}
	if err := d.launch(dir, b.String(), o.daemon); err != nil {
		return nil, err
	}
	if err := d.ready(); err != nil {
		said, _ := os.ReadFile(d.log.Name()) // what it said is a help, not a must
		return nil, errors.Join(fmt.Errorf("%w; sluiced said:\n%s", err, said), d.close())
	}
	return d, nil
}

// measure opens what a point has and returns the rate of each round.
func (d *scaled) measure(p *scalePoint, o options) (rates []float64, err error) {
	pool := mem.NewPool(1 << 30)
	m, err := newMany(pool, 4)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.close(), pool.Close()) }()
	url := func(i int) string { return fmt.Sprintf("iser://127.0.0.1:%d/%s-%d/0", d.port, iqn, i) }
	var vols []*block.Volume
	defer func() { err = errors.Join(closeAll(vols), err) }()
	if p.Of == "sessions" {
		if vols, _, err = m.open(url(0), p.Count); err != nil {
			return nil, err
		}
	} else {
		for i := range p.Count {
			v, _, err := m.open(url(i), 1)
			if err != nil {
				return nil, err
			}
			vols = append(vols, v...)
		}
	}
	if _, _, err := hammer(vols, o.each/2); err != nil { // warm up
		return nil, err
	}
	var p50, p99 []float64
	var all cost
	for range o.rounds {
		err := p.Mach.quiet(func() error {
			before := switches(d.pids())
			h, rate, err := hammer(vols, o.each)
			if err != nil {
				return err
			}
			after := switches(d.pids())
			for i := range after {
				all.sums[i] += after[i] - min(before[i], after[i])
			}
			all.n += int(h.TotalCount())
			rates = append(rates, rate)
			p50, p99 = append(p50, float64(h.ValueAtQuantile(50))/1e3), append(p99, float64(h.ValueAtQuantile(99))/1e3)
			return nil
		}, func() {
			rates, p50, p99 = rates[:len(rates)-1], p50[:len(p50)-1], p99[:len(p99)-1]
		})
		if err != nil {
			return nil, err
		}
	}
	p.Rate, p.P50, p.P99, p.Wakes = median(rates), median(p50), median(p99), all.wakesPerIO()
	return rates, nil
}
