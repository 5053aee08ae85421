package benchcmd

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// report has the shape of fio's JSON, as far as tools read it: one job, which is the sum of all.
type report struct {
	Version   string      `json:"fio version"` // the key that tools look for; it names us
	Timestamp int64       `json:"timestamp"`
	Jobs      []jobReport `json:"jobs"`
	Verified  int64       `json:"verified_blocks,omitempty"`
	spec      *spec
	took      time.Duration
}

type jobReport struct {
	Name    string            `json:"jobname"`
	Options map[string]string `json:"job options"`
	Read    dirReport         `json:"read"`
	Write   dirReport         `json:"write"`
	Runtime int64             `json:"job_runtime"` // ms
}

type dirReport struct {
	IOBytes  int64   `json:"io_bytes"`
	Bytes    float64 `json:"bw_bytes"` // a second
	KiB      int64   `json:"bw"`       // KiB a second
	IOPS     float64 `json:"iops"`
	Runtime  int64   `json:"runtime"` // ms
	TotalIOs int64   `json:"total_ios"`
	CLat     latency `json:"clat_ns"`
}

type latency struct {
	Min        int64            `json:"min"`
	Max        int64            `json:"max"`
	Mean       float64          `json:"mean"`
	Stddev     float64          `json:"stddev"`
	N          int64            `json:"N"`
	Percentile map[string]int64 `json:"percentile,omitempty"`
}

var percentiles = []float64{1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99}

func newReport(o *options, s *spec, jobs []*job, began time.Time, took time.Duration, version string) *report {
	r, w := newSide(), newSide()
	for _, j := range jobs {
		merge(&r, &j.read)
		merge(&w, &j.write)
	}
	jr := jobReport{
		Name: "sluice-" + s.pattern, Runtime: took.Milliseconds(), Read: direction(&r, took), Write: direction(&w, took),
		Options: map[string]string{"rw": s.pattern, "bs": o.bs, "iodepth": fmt.Sprint(s.depth), "numjobs": fmt.Sprint(len(jobs)), "runtime": o.runtime.String(), "crc": o.conn.CRC},
	}
	return &report{Version: "sluice-" + version, Timestamp: began.Unix(), Jobs: []jobReport{jr}, spec: s, took: took}
}

func merge(into, s *side) {
	into.ios += s.ios
	into.bytes += s.bytes
	into.lat.Merge(s.lat)
}

func direction(s *side, took time.Duration) dirReport {
	d := dirReport{IOBytes: s.bytes, TotalIOs: s.ios, Runtime: took.Milliseconds(), Bytes: float64(s.bytes) / took.Seconds(), IOPS: float64(s.ios) / took.Seconds()}
	d.KiB = int64(d.Bytes / 1024)
	d.CLat = latencyOf(s.lat)
	return d
}

func latencyOf(h *hdrhistogram.Histogram) latency {
	l := latency{N: h.TotalCount()}
	if l.N == 0 {
		return l
	}
	l.Min, l.Max, l.Mean, l.Stddev, l.Percentile = h.Min(), h.Max(), h.Mean(), h.StdDev(), map[string]int64{}
	for _, p := range percentiles {
		l.Percentile[fmt.Sprintf("%.6f", p)] = h.ValueAtPercentile(p)
	}
	return l
}

func (r *report) table(t *ui.Table) {
	j := r.Jobs[0]
	t.Row("", "IOPS", "RATE", "P50", "P95", "P99", "P99.9", "MAX")
	for _, d := range []struct {
		name string
		dirReport
	}{{"read", j.Read}, {"write", j.Write}} {
		if d.TotalIOs == 0 {
			continue
		}
		at := func(p string) string { return short(d.CLat.Percentile[p]) }
		t.Row(d.name, fmt.Sprintf("%.0f", d.IOPS), ui.Bytes(int64(d.Bytes))+"/s", at("50.000000"), at("95.000000"), at("99.000000"), at("99.900000"), short(d.CLat.Max))
	}
	if r.spec.verify {
		t.Row("verified", fmt.Sprint(r.Verified), "blocks")
	}
}

// short rounds a latency to three digits or so.
func short(ns int64) string {
	d := time.Duration(ns)
	switch {
	case d < time.Millisecond:
		return d.Round(100 * time.Nanosecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}
