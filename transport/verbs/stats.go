package verbs

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/sluice-storage/sluice/transport"
)

// eventNames are those of asynchronous events that are counted, by asyncKind.
var eventNames = [...]string{asyncOther: "other", asyncDeviceFatal: "device_fatal", asyncPortActive: "port_active", asyncPortError: "port_error",
	asyncQPFatal: "queue_pair_error", asyncCQError: "completion_queue_error", asyncGIDChange: "gid_change"}

// tally counts what an adapter has done. Completions are those of connections that are gone: the others count their own, so that no
// two connections share a counter.
type tally struct {
	completions uint64 // Device.mu
	events      [len(eventNames)]atomic.Uint64
}

var _ transport.Adapters = (*Device)(nil)

// Adapters tells of each adapter in use. One that was taken out and came back is one.
func (d *Device) Adapters() []transport.AdapterInfo {
	all := map[string]*transport.AdapterInfo{}
	d.mu.Lock()
	for _, a := range d.adapters {
		i := all[a.attr.Name]
		if i == nil {
			i = &transport.AdapterInfo{Name: a.attr.Name, Events: map[string]uint64{}}
			all[i.Name] = i
		}
		i.WholeSlabs, i.OpenSinks = !a.windows && d.opt.WholeSlab, a.sinks
		i.Completions += a.past.completions
		for k, name := range eventNames {
			i.Events[name] += a.past.events[k].Load()
		}
	}
	for q := range d.qps {
		if !q.made() {
			continue
		}
		i := all[q.a.attr.Name]
		i.Completions += q.polled.Load()
		if !q.settled() {
			i.Connections++
		}
	}
	d.mu.Unlock()
	d.mem.mu.Lock()
	for dom := range d.mem.domains {
		i := all[dom.a.attr.Name]
		if i == nil {
			continue // taken this moment
		}
		local, open := dom.local.Load().bytes()+dom.coming.Load().bytes(), dom.open.Load().bytes()
		i.Registered += local + open
		if i.Exposed += open; dom.a.sinks {
			i.Exposed += local
		}
	}
	d.mem.mu.Unlock()
	l := make([]transport.AdapterInfo, 0, len(all))
	for _, i := range slices.SortedFunc(maps.Values(all), func(a, b *transport.AdapterInfo) int { return cmp.Compare(a.Name, b.Name) }) {
		l = append(l, *i)
	}
	return l
}

func (t *regions) bytes() (n int64) {
	if t != nil {
		for _, r := range *t {
			n += int64(r.size)
		}
	}
	return n
}
