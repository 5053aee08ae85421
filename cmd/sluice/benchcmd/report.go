package benchcmd

import (
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
)

// sampleEvery is fio's default for its samples of bandwidth.
const sampleEvery = 500 * time.Millisecond

// sampler takes samples of what the jobs have done so far, until it is stopped.
type sampler struct {
	jobs        []*job
	read, write []sample
	stop        chan struct{}
	done        sync.WaitGroup
}

func startSampler(jobs []*job) *sampler {
	s := &sampler{jobs: jobs, stop: make(chan struct{})}
	s.done.Go(s.run)
	return s
}

func (s *sampler) run() {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var lastR, lastW side
	last := time.Now()
	for {
		select {
		case <-s.stop:
			return
		case now := <-tick.C:
			var r, w side
			for _, j := range s.jobs {
				j.mu.Lock()
				r.ios, r.bytes = r.ios+j.read.ios, r.bytes+j.read.bytes
				w.ios, w.bytes = w.ios+j.write.ios, w.bytes+j.write.bytes
				j.mu.Unlock()
			}
			t := now.Sub(last).Seconds()
			rate := func(a, b side) sample {
				return sample{ios: float64(b.ios-a.ios) / t, bytes: float64(b.bytes-a.bytes) / t}
			}
			s.read, s.write = append(s.read, rate(lastR, r)), append(s.write, rate(lastW, w))
			lastR, lastW, last = r, w, now
		}
	}
}

func (s *sampler) end() {
	close(s.stop)
	s.done.Wait()
}

// measured is a run that has ended.
type measured struct {
	began, ended  time.Time
	before, after unix.Rusage
	samples       *sampler
}

func newReport(o *options, s *spec, jobs []*job, m measured, version string) *report {
	r, w := newSide(), newSide()
	for _, j := range jobs {
		merge(&r, &j.read)
		merge(&w, &j.write)
	}
	took := m.ended.Sub(m.began)
	jr := jobReport{
		Name: "sluice-" + s.pattern, Elapsed: int64(took.Seconds() + 1), Runtime: took.Milliseconds() * int64(len(jobs)),
		Read: direction(&r, took, m.samples.read), Write: direction(&w, took, m.samples.write), LatPercent: 100,
		Depths: share(depthEdges, s.depth), Submits: batches(), Completes: batches(),
		Options: map[string]string{"name": "sluice-" + s.pattern, "rw": s.pattern, "bs": o.bs, "iodepth": fmt.Sprint(s.depth), "numjobs": fmt.Sprint(len(jobs)),
			"runtime": o.runtime.String(), "ioengine": "sluice", "crc": o.conn.CRC, "provider": o.conn.Provider, "exposure": o.conn.Exposure},
	}
	if s.hasRead && s.hasWrite {
		jr.Options["rwmixread"] = fmt.Sprint(s.mix)
	}
	jr.distribute(r.lat, w.lat)
	jr.used(m.before, m.after, took.Seconds())
	return &report{Version: "sluice-" + version, Timestamp: m.ended.Unix(), Millis: m.ended.UnixMilli(), Time: m.ended.Format("Mon Jan _2 15:04:05 2006"),
		Jobs: []jobReport{jr}, Disks: []struct{}{}, spec: s}
}

func merge(into, s *side) {
	into.ios += s.ios
	into.bytes += s.bytes
	into.lat.Merge(s.lat)
}

func direction(s *side, took time.Duration, samples []sample) dirReport {
	d := dirReport{IOBytes: s.bytes, IOKiB: s.bytes / 1024, TotalIOs: s.ios, Bytes: int64(float64(s.bytes) / took.Seconds()), IOPS: float64(s.ios) / took.Seconds()}
	if s.ios > 0 {
		d.Runtime = took.Milliseconds()
	}
	d.KiB = d.Bytes / 1024
	d.CLat = latencyOf(s.lat)
	d.Lat = d.CLat
	d.Lat.Percentile = nil // fio gives them for one of the two
	d.spread(samples)
	return d
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
		t.Row(d.name, fmt.Sprintf("%.0f", d.IOPS), ui.Bytes(d.Bytes)+"/s", at("50.000000"), at("95.000000"), at("99.000000"), at("99.900000"), short(d.CLat.Max))
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
