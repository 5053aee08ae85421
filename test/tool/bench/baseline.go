package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/sluice-storage/sluice/test/lib/stat"
)

// A baseline is the ratios of an earlier run. A change is judged by a ratio of ratios, which leaves out how fast the machine is; what it leaves in
// is noise, and that is stated: the 95 % interval of the rounds' mean on both sides.

// maxLoss is what a row may lose against its baseline, behind the noise of both.
const maxLoss = 0.05

type baseline struct {
	Made string             `json:"made"` // of the newest rows
	Rows map[string]baseRow `json:"rows"`
}

// baseRow is one ratio, in which more is better.
type baseRow struct {
	Ratio  float64   `json:"ratio"`  // geometric mean of the rounds
	Noise  float64   `json:"noise"`  // half of its 95 % interval, as a share
	Rounds []float64 `json:"rounds"` // each to four digits
}

// figures are the report as it is read back: the parts that a page shows and a baseline keeps.
type figures struct {
	CRC      string           `json:"crc"`
	Results  []*result        `json:"results"`
	Sweep    []*sweepLine     `json:"sweep"`
	Latency  []*latency       `json:"latency"`
	Shared   []*result        `json:"shared"`
	Direct   []*directResult  `json:"direct"`
	Scale    []*scalePoint    `json:"scale"`
	Tgt      []*tgtResult     `json:"tgt"`
	Staging  []*stagingResult `json:"staging"`
	NBD      []*nbdResult     `json:"nbd"`
	NFSTCP   []*result        `json:"nfs_tcp"`
	NFSRDMA  []*result        `json:"nfs_rdma"`
	Missed   []string         `json:"missed"`
	Baseline []change         `json:"-"`
}

func figuresOf(report map[string]any) (*figures, error) {
	b, err := json.Marshal(report)
	if err != nil {
		return nil, err
	}
	f := &figures{}
	return f, json.Unmarshal(b, f)
}

// rows are the ratios of a run by name, turned so that more is better. Numbers of sessions and of volumes have none: their rounds do not alternate with
// those of what they are compared with.
func (f *figures) rows() map[string]baseRow {
	m := map[string]baseRow{}
	add := func(part, work string, rounds []float64) {
		if len(rounds) > 0 {
			m[part+": "+work] = newRow(rounds)
		}
	}
	for part, l := range map[string][]*result{"block": f.Results, "shared": f.Shared, "nfs over tcp": f.NFSTCP, "nfs over rdma": f.NFSRDMA} {
		for _, r := range l {
			add(part, r.Work, r.Rounds)
		}
	}
	for _, l := range f.Sweep {
		for _, r := range l.Points {
			add("sweep", r.Work, r.Rounds)
		}
	}
	for _, r := range f.Latency {
		add("latency", r.Work, inverse(r.Rounds))
	}
	for _, r := range f.Direct {
		add("direct", r.name(), r.Rounds)
	}
	for _, r := range f.Tgt {
		add("tgt", r.Work, r.Rounds)
		add("tgt, processor time", r.Work, inverse(r.CPURounds))
	}
	for _, r := range f.Staging {
		add("staging", r.Work, r.Rounds)
	}
	for _, r := range f.NBD {
		add("nbd", r.Work, r.Rounds)
	}
	return m
}

func inverse(v []float64) []float64 {
	l := make([]float64, len(v))
	for i := range v {
		l[i] = over(1, v[i])
	}
	return l
}

func newRow(rounds []float64) baseRow {
	r := baseRow{}
	for _, v := range rounds {
		r.Rounds = append(r.Rounds, math.Round(v*1e4)/1e4)
	}
	mean, low, high := stat.Interval(logs(r.Rounds))
	r.Ratio = math.Round(mean*1e4) / 1e4
	if low > 0 {
		r.Noise = math.Round((math.Sqrt(high/low)-1)*1e4) / 1e4
	}
	return r
}

func logs(v []float64) []float64 {
	l := make([]float64, len(v))
	for i := range v {
		l[i] = math.Log(max(v[i], 1e-4))
	}
	return l
}

// change is a row of this run beside its baseline.
type change struct {
	Row      string
	Old, New float64
	Ratio    float64 // of the two
	Noise    float64 // of Ratio, as a share: its 95 % interval is Ratio divided and multiplied by 1 + Noise
	Worse    bool
}

// against compares a run with a baseline, by the rows that both have.
func (b *baseline) against(now map[string]baseRow) []change {
	var l []change
	for _, name := range slices.Sorted(maps.Keys(now)) {
		old, some := b.Rows[name]
		if !some || old.Ratio <= 0 {
			continue
		}
		n := now[name]
		c := change{Row: name, Old: old.Ratio, New: n.Ratio, Ratio: n.Ratio / old.Ratio}
		c.Noise = math.Exp(math.Hypot(math.Log1p(old.Noise), math.Log1p(n.Noise))) - 1
		c.Worse = len(old.Rounds) > 1 && len(n.Rounds) > 1 && c.Ratio*(1+c.Noise) < 1-maxLoss
		l = append(l, c)
	}
	return l
}

func readBaseline(path string) (*baseline, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	l := &baseline{}
	if err := json.Unmarshal(b, l); err != nil {
		return nil, fmt.Errorf("%s is no baseline: %w", path, err)
	}
	return l, nil
}

// keep puts the rows of this run in place of those of the same names.
func keep(path, made string, now map[string]baseRow) error {
	b, err := readBaseline(path)
	if errors.Is(err, fs.ErrNotExist) {
		b, err = &baseline{}, nil
	}
	if err != nil {
		return err
	}
	if b.Rows == nil {
		b.Rows = map[string]baseRow{}
	}
	b.Made = made
	maps.Copy(b.Rows, now)
	text, err := json.MarshalIndent(b, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// afterwards is what becomes of the figures: the comparison with a baseline, a page, and a new baseline.
func afterwards(o options, report map[string]any) (worse []error, err error) {
	if cmp.Or(o.baseline, o.writeBaseline, o.page) == "" {
		return nil, nil
	}
	f, err := figuresOf(report)
	if err != nil {
		return nil, err
	}
	if o.baseline != "" {
		b, err := readBaseline(o.baseline)
		if err != nil {
			return nil, err
		}
		f.Baseline = b.against(f.rows())
		fmt.Printf("\nratios beside those of %s (%s)\n", o.baseline, b.Made)
		printChanges(os.Stdout, f.Baseline)
		for _, c := range f.Baseline {
			if c.Worse {
				worse = append(worse, fmt.Errorf("%s: %.2f of its baseline's ratio, give or take %.0f %%", c.Row, c.Ratio, 100*c.Noise))
			}
		}
	}
	if o.page != "" {
		if err := f.page(o.page, report); err != nil {
			return nil, err
		}
	}
	if o.writeBaseline != "" {
		return worse, keep(o.writeBaseline, here(), f.rows())
	}
	return worse, nil
}

func printChanges(w io.Writer, l []change) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "row\tbefore\tnow\tnow/before\tnoise\t")
	for _, c := range l {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f\t%.2f\t%.0f %%\t%s\n", c.Row, c.Old, c.New, c.Ratio, 100*c.Noise, map[bool]string{true: "worse"}[c.Worse])
	}
	t.Flush()
}
