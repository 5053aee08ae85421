package verbs

import (
	"slices"
	"sync"
)

// asyncHub is where the asynchronous events of an adapter are heard. The library has one context of an adapter for the whole process
// (rdma_get_devices), and gives each event once: every Device that uses the adapter hears all that any of them takes.
type asyncHub struct {
	// asyncMu is held while events are taken and handed on, and while queue pairs are destroyed: no event is of an object that
	// is gone, and after a fatal event the library must not be asked for more while something is destroyed.
	asyncMu sync.Mutex
	all     []*rnic
}

type hubKey struct {
	tab table
	dev handle
}

var hubs = struct {
	sync.Mutex
	of map[hubKey]*asyncHub
}{of: map[hubKey]*asyncHub{}}

// joinHub makes a one that hears.
func joinHub(a *rnic) *asyncHub {
	hubs.Lock()
	defer hubs.Unlock()
	k := hubKey{a.d.tab, a.attr.Dev}
	h := hubs.of[k]
	if h == nil {
		h = &asyncHub{}
		hubs.of[k] = h
	}
	h.asyncMu.Lock()
	h.all = append(h.all, a)
	h.asyncMu.Unlock()
	return h
}

// leaveHub is its end, when a's queue pairs are destroyed.
func leaveHub(a *rnic) {
	hubs.Lock()
	defer hubs.Unlock()
	h := a.asyncHub
	h.asyncMu.Lock()
	h.all = slices.DeleteFunc(h.all, func(x *rnic) bool { return x == a })
	none := len(h.all) == 0
	h.asyncMu.Unlock()
	if none {
		delete(hubs.of, hubKey{a.d.tab, a.attr.Dev})
	}
}
