package daemon

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-storage/sluice/target/admin"
	"github.com/sluice-storage/sluice/target/flight"
	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/srp"
)

// Trace implements admin.Backend.
func (d *Daemon) Trace(id string) (admin.Trace, error) {
	overSRP, handle, err := parseID(id)
	if err != nil {
		return admin.Trace{}, err
	}
	var t flight.Trace
	out := admin.Trace{Events: []admin.TraceEvent{}}
	if overSRP {
		var x srp.SessionInfo
		x, out.Ended, t, err = d.srp.Trace(handle)
		out.Session = srpSessionOf(x)
	} else {
		var x iscsi.Trace
		x, err = d.server.Trace(uint16(handle))
		t, out.Ended, out.Session = x.Trace, x.Ended, sessionOf(x.Session)
	}
	if err != nil {
		return admin.Trace{}, &admin.Error{Kind: admin.NotFound, Msg: "there is no session " + id + ", and none of the last that ended was " + id}
	}
	for _, e := range t.Events {
		out.Events = append(out.Events, admin.TraceEvent(e))
	}
	conv := func(l []flight.Command) []admin.TraceCommand {
		to := []admin.TraceCommand{}
		for _, c := range l {
			to = append(to, admin.TraceCommand{At: c.At, Took: int64(c.Took), Tag: c.Tag, LUN: c.LUN, Command: c.Command, Outcome: c.Outcome})
		}
		return to
	}
	out.Commands, out.Inflight = conv(t.Commands), conv(t.Inflight)
	return out, nil
}

// Stats implements admin.Backend.
func (d *Daemon) Stats() admin.Stats {
	mem := d.memory.Stats()
	out := admin.Stats{At: time.Now(), Volumes: []admin.VolumeStats{}, Exports: []admin.ExportStats{}, Sessions: d.Sessions(),
		Memory: admin.MemoryStats{Used: mem.Used, Cached: mem.Cached, Limit: mem.Max}}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, v := range d.volumes {
		s, l := v.lu.Stats(), v.lu.Latency()
		out.Volumes = append(out.Volumes, admin.VolumeStats{Name: name, Reads: s.Reads, Writes: s.Writes, Others: s.Others, ReadBytes: s.ReadBytes,
			WrittenBytes: s.WrittenBytes, Errors: s.ReadErrors + s.WriteErrors, InProgress: v.lu.InProgress(), ReadTimes: latencyOf(&l.Read), WriteTimes: latencyOf(&l.Write)})
	}
	slices.SortFunc(out.Volumes, func(a, b admin.VolumeStats) int { return strings.Compare(a.Name, b.Name) })
	if d.files != nil {
		for _, e := range d.files.nfs.Stats() {
			if e.Export == "" {
				continue // of no export
			}
			read, write, other := e.Kinds()
			out.Exports = append(out.Exports, admin.ExportStats{Name: e.Export, ReadBytes: int64(e.Read), WrittenBytes: int64(e.Written),
				ReadTimes: latencyOf(&read), WriteTimes: latencyOf(&write), OtherTimes: latencyOf(&other)})
		}
		slices.SortFunc(out.Exports, func(a, b admin.ExportStats) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

func latencyOf(s *hist.Snapshot) admin.Latency {
	l := admin.Latency{Sum: int64(s.Sum)}
	for _, b := range hist.Bounds {
		l.Bounds = append(l.Bounds, int64(b))
	}
	for _, n := range s.Counts {
		l.Counts = append(l.Counts, int64(n))
	}
	return l
}
