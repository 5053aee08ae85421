package benchcmd

import (
	"math"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// report has the shape of fio 3's JSON, key for key, so that what reads fio's reads it: one job, which is the sum of all.
// What fio measures and this program has not got (a submission apart from its completion) is the same in both, or zero.
type report struct {
	Version   string      `json:"fio version"` // the key that tools look for; it names us
	Timestamp int64       `json:"timestamp"`
	Millis    int64       `json:"timestamp_ms"`
	Time      string      `json:"time"`
	Jobs      []jobReport `json:"jobs"`
	Disks     []struct{}  `json:"disk_util"` // the volume is no disk of this machine
	Verified  int64       `json:"verified_blocks,omitempty"`
	spec      *spec
}

type jobReport struct {
	Name       string             `json:"jobname"`
	Group      int                `json:"groupid"`
	Error      int                `json:"error"`
	ETA        int                `json:"eta"`
	Elapsed    int64              `json:"elapsed"` // s
	Options    map[string]string  `json:"job options"`
	Read       dirReport          `json:"read"`
	Write      dirReport          `json:"write"`
	Trim       dirReport          `json:"trim"`
	Sync       syncReport         `json:"sync"`
	Runtime    int64              `json:"job_runtime"` // ms
	User       float64            `json:"usr_cpu"`     // percent of one processor
	System     float64            `json:"sys_cpu"`
	Switches   int64              `json:"ctx"`
	MajorFault int64              `json:"majf"`
	MinorFault int64              `json:"minf"`
	Depths     map[string]float64 `json:"iodepth_level"` // percent
	Submits    map[string]float64 `json:"iodepth_submit"`
	Completes  map[string]float64 `json:"iodepth_complete"`
	LatNs      map[string]float64 `json:"latency_ns"` // percent of the I/Os that took up to so long
	LatUs      map[string]float64 `json:"latency_us"`
	LatMs      map[string]float64 `json:"latency_ms"`
	LatDepth   int                `json:"latency_depth"`
	LatTarget  int                `json:"latency_target"`
	LatPercent float64            `json:"latency_percentile"`
	LatWindow  int                `json:"latency_window"`
}

type dirReport struct {
	IOBytes  int64   `json:"io_bytes"`
	IOKiB    int64   `json:"io_kbytes"`
	Bytes    int64   `json:"bw_bytes"` // a second
	KiB      int64   `json:"bw"`       // KiB a second
	IOPS     float64 `json:"iops"`
	Runtime  int64   `json:"runtime"` // ms
	TotalIOs int64   `json:"total_ios"`
	Short    int64   `json:"short_ios"`
	Dropped  int64   `json:"drop_ios"`
	SLat     latency `json:"slat_ns"`
	CLat     latency `json:"clat_ns"`
	Lat      latency `json:"lat_ns"`
	// Of the half-seconds of the run, in KiB a second and I/Os a second.
	BwMin     int64   `json:"bw_min"`
	BwMax     int64   `json:"bw_max"`
	BwAgg     float64 `json:"bw_agg"`
	BwMean    float64 `json:"bw_mean"`
	BwDev     float64 `json:"bw_dev"`
	BwSamples int     `json:"bw_samples"`
	IOPSMin   int64   `json:"iops_min"`
	IOPSMax   int64   `json:"iops_max"`
	IOPSMean  float64 `json:"iops_mean"`
	IOPSDev   float64 `json:"iops_stddev"`
	IOPSCount int     `json:"iops_samples"`
}

type syncReport struct {
	TotalIOs int64   `json:"total_ios"`
	Lat      latency `json:"lat_ns"`
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

func latencyOf(h *hdrhistogram.Histogram) latency {
	l := latency{N: h.TotalCount()}
	if l.N == 0 {
		return l
	}
	l.Min, l.Max, l.Mean, l.Stddev, l.Percentile = h.Min(), h.Max(), h.Mean(), h.StdDev(), map[string]int64{}
	for _, p := range percentiles {
		l.Percentile[strconv.FormatFloat(p, 'f', 6, 64)] = h.ValueAtPercentile(p)
	}
	return l
}

// The edges of fio's distributions.
var (
	latEdges   = []int64{2, 4, 10, 20, 50, 100, 250, 500, 750, 1000}
	msEdges    = []int64{2, 4, 10, 20, 50, 100, 250, 500, 750, 1000, 2000}
	depthEdges = []int{1, 2, 4, 8, 16, 32}
	batchEdges = []int{0, 4, 8, 16, 32, 64}
)

// distribute fills fio's three distributions of latency, in percent of all I/Os.
func (j *jobReport) distribute(hs ...*hdrhistogram.Histogram) {
	j.LatNs, j.LatUs, j.LatMs = map[string]float64{}, map[string]float64{}, map[string]float64{">=2000": 0}
	type edge struct {
		ns  int64
		in  map[string]float64
		key string
	}
	var edges []edge
	for _, t := range []struct {
		in    map[string]float64
		unit  int64
		edges []int64
	}{{j.LatNs, 1, latEdges}, {j.LatUs, 1e3, latEdges}, {j.LatMs, 1e6, msEdges}} {
		for _, e := range t.edges {
			key := strconv.FormatInt(e, 10)
			t.in[key] = 0
			edges = append(edges, edge{e * t.unit, t.in, key})
		}
	}
	total := int64(0)
	for _, h := range hs {
		total += h.TotalCount()
	}
	if total == 0 {
		return
	}
	for _, h := range hs {
		for _, bar := range h.Distribution() {
			if bar.Count == 0 {
				continue
			}
			share := 100 * float64(bar.Count) / float64(total)
			k := 0
			for k < len(edges) && bar.To >= edges[k].ns {
				k++
			}
			if k == len(edges) {
				j.LatMs[">=2000"] += share
			} else {
				edges[k].in[edges[k].key] += share
			}
		}
	}
}

// share says that everything lies at n in one of fio's distributions of depths: the key is the last edge that n reaches.
func share(edges []int, n int) map[string]float64 {
	m := map[string]float64{">=64": 0}
	at := ">=64"
	for i := len(edges) - 1; i >= 0; i-- {
		k := strconv.Itoa(edges[i])
		m[k] = 0
	}
	if n < 64 {
		for _, e := range edges {
			if n >= e {
				at = strconv.Itoa(e)
			}
		}
	}
	m[at] = 100
	return m
}

// batches is the distribution of requests that are submitted, or seen to have ended, one at a time.
func batches() map[string]float64 {
	m := share(batchEdges, 0)
	m["0"], m["4"] = 0, 100
	return m
}

// sample is what one direction did in half a second.
type sample struct{ ios, bytes float64 } // a second

// spread fills the figures that come of samples.
func (d *dirReport) spread(s []sample) {
	if len(s) == 0 || d.TotalIOs == 0 {
		return
	}
	stat := func(of func(sample) float64) (lo, hi, mean, dev float64) {
		lo = math.Inf(1)
		for _, x := range s {
			v := of(x)
			lo, hi, mean = min(lo, v), max(hi, v), mean+v/float64(len(s))
		}
		for _, x := range s {
			dev += (of(x) - mean) * (of(x) - mean)
		}
		if len(s) > 1 {
			dev = math.Sqrt(dev / float64(len(s)-1))
		}
		return lo, hi, mean, dev
	}
	lo, hi, mean, dev := stat(func(s sample) float64 { return s.bytes / 1024 })
	d.BwMin, d.BwMax, d.BwMean, d.BwDev, d.BwSamples, d.BwAgg = int64(lo), int64(hi), mean, dev, len(s), 100
	lo, hi, mean, dev = stat(func(s sample) float64 { return s.ios })
	d.IOPSMin, d.IOPSMax, d.IOPSMean, d.IOPSDev, d.IOPSCount = int64(lo), int64(hi), mean, dev, len(s)
}

// usage is what the process has used of the machine.
func usage() unix.Rusage {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u) // it fails only for arguments that do not exist
	return u
}

// used fills in what the run used, given what was used before.
func (j *jobReport) used(before, after unix.Rusage, seconds float64) {
	t := func(a, b unix.Timeval) float64 {
		return 100 * (float64(b.Nano()-a.Nano()) / 1e9) / seconds
	}
	j.User, j.System = t(before.Utime, after.Utime), t(before.Stime, after.Stime)
	j.Switches = after.Nvcsw + after.Nivcsw - before.Nvcsw - before.Nivcsw
	j.MajorFault, j.MinorFault = after.Majflt-before.Majflt, after.Minflt-before.Minflt
}
