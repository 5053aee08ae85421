package benchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/plot"
)

// The points of a report: each factor by itself, the other as asked for.
var (
	sweepDepths = []int{1, 2, 4, 8, 16, 32, 64}
	sweepBlocks = []string{"4k", "8k", "16k", "32k", "64k", "128k", "256k", "512k", "1m"}
)

// point is one measurement of a report.
type point struct {
	Sweep  string  `json:"sweep"` // depth or block
	Depth  int     `json:"iodepth"`
	Block  string  `json:"bs"`
	Report *report `json:"fio"`
}

// sweep measures throughput and latency against depth and against block size and leaves plots, a page that shows them and
// every figure in dir.
func (o *options) sweep(ctx context.Context, progress io.Writer, url, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var points []point
	for _, d := range sweepDepths {
		points = append(points, point{Sweep: "depth", Depth: d, Block: o.bs})
	}
	for _, b := range sweepBlocks {
		points = append(points, point{Sweep: "block", Depth: o.depth, Block: b})
	}
	for i := range points {
		p := &points[i]
		one := *o
		one.depth, one.bs = p.Depth, p.Block
		s, err := one.spec()
		if err != nil {
			return err
		}
		if !o.noStats {
			ui.Note(progress, "%d of %d: %s, bs %s, iodepth %d, for %v", i+1, len(points), o.rw, p.Block, p.Depth, o.runtime)
		}
		if p.Report, err = one.run(ctx, progress, url, s); err != nil {
			return fmt.Errorf("bs %s, iodepth %d: %w", p.Block, p.Depth, err)
		}
	}
	return o.write(dir, url, points)
}

// write leaves the report's files.
func (o *options) write(dir, url string, points []point) error {
	b, err := json.MarshalIndent(points, "", "  ")
	if err != nil {
		return err
	}
	errs := []error{os.WriteFile(filepath.Join(dir, "report.json"), append(b, '\n'), 0o644)}
	for _, sweep := range []string{"depth", "block"} {
		for name, c := range o.charts(sweep, points) {
			errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(c.SVG()), 0o644))
		}
	}
	shown := url // without secrets
	if u, err := block.ParseURL(url); err == nil {
		shown = u.String()
	}
	errs = append(errs, os.WriteFile(filepath.Join(dir, "README.md"), []byte(o.page(shown, points)), 0o644))
	return errors.Join(errs...)
}

// directions of a report that has them.
func directions(r *report) map[string]*dirReport {
	m := map[string]*dirReport{}
	if j := &r.Jobs[0]; j.Read.TotalIOs > 0 {
		m["read"] = &j.Read
	}
	if j := &r.Jobs[0]; j.Write.TotalIOs > 0 {
		m["write"] = &j.Write
	}
	return m
}

// charts are the two of a sweep: throughput and latency.
func (o *options) charts(sweep string, points []point) map[string]*plot.Chart {
	what, fixed := "I/O depth (requests under way)", "bs "+o.bs
	rate := &plot.Chart{Y: "throughput (I/Os a second)"}
	of := func(d *dirReport) float64 { return d.IOPS }
	if sweep == "block" {
		what, fixed = "block size (bytes)", fmt.Sprintf("iodepth %d", o.depth)
		rate.Y = "throughput (MB/s, 10^6 bytes)"
		of = func(d *dirReport) float64 { return float64(d.Bytes) / 1e6 }
	}
	rate.Title, rate.X = fmt.Sprintf("%s, %s: throughput", o.rw, fixed), what
	lat := &plot.Chart{Title: fmt.Sprintf("%s, %s: latency", o.rw, fixed), X: what, Y: "latency (us, logarithmic)", LogY: true}
	var mine []point
	for _, p := range points {
		if p.Sweep == sweep {
			mine = append(mine, p)
			tick := fmt.Sprint(p.Depth)
			if sweep == "block" {
				tick = p.Block
			}
			rate.Ticks, lat.Ticks = append(rate.Ticks, tick), append(lat.Ticks, tick)
		}
	}
	for _, dir := range []string{"read", "write"} {
		series := func(f func(*dirReport) float64) (vs []float64, any bool) {
			for _, p := range mine {
				v := math.NaN()
				if d := directions(p.Report)[dir]; d != nil {
					v, any = f(d), true
				}
				vs = append(vs, v)
			}
			return vs, any
		}
		if vs, any := series(of); any {
			rate.Lines = append(rate.Lines, plot.Line{Name: dir, Values: vs})
		}
		for _, q := range []struct{ name, key string }{{"p50", "50.000000"}, {"p99", "99.000000"}, {"p99.9", "99.900000"}} {
			if vs, any := series(func(d *dirReport) float64 { return float64(d.CLat.Percentile[q.key]) / 1e3 }); any {
				lat.Lines = append(lat.Lines, plot.Line{Name: dir + " " + q.name, Values: vs})
			}
		}
	}
	return map[string]*plot.Chart{sweep + "-throughput.svg": rate, sweep + "-latency.svg": lat}
}

func (o *options) page(url string, points []point) string {
	var b strings.Builder
	first := points[0].Report
	fmt.Fprintf(&b, "# %s on %s\n\n%s, %s. Each point took %v, with %d session", o.rw, url, first.Time, first.Version, o.runtime, o.jobs)
	if o.jobs > 1 {
		b.WriteString("s")
	}
	fmt.Fprintf(&b, "; checksum of RDMA frames: %s.\nEvery figure, in fio's shape: [report.json](report.json).\n", o.conn.CRC)
	for _, s := range []struct{ sweep, title string }{{"depth", "Against I/O depth, bs " + o.bs}, {"block", fmt.Sprintf("Against block size, iodepth %d", o.depth)}} {
		fmt.Fprintf(&b, "\n## %s\n\n![throughput](%s-throughput.svg)\n\n![latency](%s-latency.svg)\n\n", s.title, s.sweep, s.sweep)
		b.WriteString("| depth | bs | direction | IOPS | MB/s | p50 | p99 | p99.9 | max |\n| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
		for _, p := range points {
			for _, dir := range []string{"read", "write"} {
				d := directions(p.Report)[dir]
				if d == nil || p.Sweep != s.sweep {
					continue
				}
				at := func(q string) string { return short(d.CLat.Percentile[q]) }
				fmt.Fprintf(&b, "| %d | %s | %s | %.0f | %.1f | %s | %s | %s | %s |\n", p.Depth, p.Block, dir, d.IOPS, float64(d.Bytes)/1e6,
					at("50.000000"), at("99.000000"), at("99.900000"), short(d.CLat.Max))
			}
		}
	}
	return b.String()
}
