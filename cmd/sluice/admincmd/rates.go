package admincmd

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-storage/sluice/target/admin"
)

// rates are what happened between two readings of the daemon's counters.
type rates struct {
	Interval float64           `json:"interval_seconds"`
	Volumes  []volumeRates     `json:"volumes"`
	Exports  []exportRates     `json:"exports"`
	Sessions []sessionRates    `json:"sessions"`
	Memory   admin.MemoryStats `json:"memory"`
}

type volumeRates struct {
	Name       string    `json:"name"`
	Reads      float64   `json:"reads_per_second"`
	Writes     float64   `json:"writes_per_second"`
	ReadBytes  float64   `json:"read_bytes_per_second"`
	WriteBytes float64   `json:"written_bytes_per_second"`
	InProgress int       `json:"in_progress"`
	Errors     int64     `json:"errors"` // since the daemon opened it
	Read       quantiles `json:"read_latency"`
	Write      quantiles `json:"write_latency"`
}

type exportRates struct {
	Name       string    `json:"name"`
	Ops        float64   `json:"operations_per_second"`
	ReadBytes  float64   `json:"read_bytes_per_second"`
	WriteBytes float64   `json:"written_bytes_per_second"`
	Read       quantiles `json:"read_latency"`
	Write      quantiles `json:"write_latency"`
	Other      quantiles `json:"other_latency"`
}

type sessionRates struct {
	ID         string  `json:"id"`
	Initiator  string  `json:"initiator"`
	Target     string  `json:"target"`
	Transport  string  `json:"transport"`
	Commands   float64 `json:"commands_per_second"`
	ReadBytes  float64 `json:"read_bytes_per_second"`
	WriteBytes float64 `json:"written_bytes_per_second"`
	InProgress int     `json:"in_progress"`
}

// quantiles of a latency, in nanoseconds; 0 where nothing ended.
type quantiles struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	n   int64
}

// between makes rates of two readings, b the later. What a has not is new and counts from 0; what b has not is gone.
func between(a, b admin.Stats) rates {
	secs := b.At.Sub(a.At).Seconds()
	if secs <= 0 {
		secs = 1
	}
	per := func(was, is int64) float64 { return float64(max(0, is-was)) / secs }
	r := rates{Interval: secs, Volumes: []volumeRates{}, Exports: []exportRates{}, Sessions: []sessionRates{}, Memory: b.Memory}
	for _, v := range b.Volumes {
		was := find(a.Volumes, func(o admin.VolumeStats) bool { return o.Name == v.Name })
		r.Volumes = append(r.Volumes, volumeRates{Name: v.Name, Reads: per(was.Reads, v.Reads), Writes: per(was.Writes, v.Writes),
			ReadBytes: per(was.ReadBytes, v.ReadBytes), WriteBytes: per(was.WrittenBytes, v.WrittenBytes), InProgress: v.InProgress, Errors: v.Errors,
			Read: latency(was.ReadTimes, v.ReadTimes), Write: latency(was.WriteTimes, v.WriteTimes)})
	}
	for _, e := range b.Exports {
		was := find(a.Exports, func(o admin.ExportStats) bool { return o.Name == e.Name })
		x := exportRates{Name: e.Name, ReadBytes: per(was.ReadBytes, e.ReadBytes), WriteBytes: per(was.WrittenBytes, e.WrittenBytes), Read: latency(was.ReadTimes, e.ReadTimes), Write: latency(was.WriteTimes, e.WriteTimes), Other: latency(was.OtherTimes, e.OtherTimes)}
		x.Ops = float64(x.Read.n+x.Write.n+x.Other.n) / secs
		r.Exports = append(r.Exports, x)
	}
	for _, s := range b.Sessions {
		was := find(a.Sessions, func(o admin.Session) bool { return o.ID == s.ID && o.Since.Equal(s.Since) })
		r.Sessions = append(r.Sessions, sessionRates{ID: s.ID, Initiator: s.Initiator, Target: s.Target, Transport: s.Transport, InProgress: s.Inflight,
			Commands: per(int64(was.Commands), int64(s.Commands)), ReadBytes: per(int64(was.Read), int64(s.Read)), WriteBytes: per(int64(was.Written), int64(s.Written))})
	}
	return r
}

func find[T any](list []T, is func(T) bool) (zero T) {
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i]
	}
	return zero
}

// latency finds the quantiles of what ended between two readings of a histogram, in proportion within a bucket. What lies
// beyond the last bound is given as that bound.
func latency(a, b admin.Latency) (q quantiles) {
	d := make([]int64, len(b.Counts))
	for i, n := range b.Counts {
		if d[i] = n; len(a.Counts) == len(b.Counts) {
			d[i] = max(0, n-a.Counts[i])
		}
		q.n += d[i]
	}
	at := func(part float64) time.Duration {
		want, below := part*float64(q.n), int64(0)
		for i, n := range d {
			if i == len(b.Bounds) {
				break
			}
			if float64(below+n) >= want && n > 0 {
				from := int64(0)
				if i > 0 {
					from = b.Bounds[i-1]
				}
				return time.Duration(float64(from) + float64(b.Bounds[i]-from)*(want-float64(below))/float64(n))
			}
			below += n
		}
		if len(b.Bounds) == 0 {
			return 0
		}
		return time.Duration(b.Bounds[len(b.Bounds)-1])
	}
	if q.n > 0 {
		q.P50, q.P99 = at(0.5), at(0.99)
	}
	return q
}

// order is what rows are sorted by.
type order int

const (
	byLoad order = iota // most bytes first
	byLatency
	byName
	orders
)

func (o order) String() string { return [...]string{"load", "latency", "name"}[o] }

// sort puts the rows in order; equals stay as the daemon lists them.
func (r *rates) sort(o order) {
	slices.SortStableFunc(r.Volumes, func(a, b volumeRates) int {
		switch o {
		case byLoad:
			return cmp.Compare(b.ReadBytes+b.WriteBytes, a.ReadBytes+a.WriteBytes)
		case byLatency:
			return cmp.Compare(max(b.Read.P99, b.Write.P99), max(a.Read.P99, a.Write.P99))
		}
		return cmp.Compare(a.Name, b.Name)
	})
	slices.SortStableFunc(r.Sessions, func(a, b sessionRates) int {
		switch o {
		case byLoad:
			return cmp.Compare(b.ReadBytes+b.WriteBytes, a.ReadBytes+a.WriteBytes)
		case byLatency:
			return cmp.Compare(b.InProgress, a.InProgress)
		}
		return cmp.Compare(a.Initiator, b.Initiator)
	})
}
