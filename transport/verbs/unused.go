package verbs

import (
	"sync"
	"time"
)

// unused remembers adapters that requests came by and that are not used. A listener at all addresses hears of every adapter, and to
// look for one asks the library about each, while connections wait for the Device: a peer is not to have that done, nor a line
// logged, with every request.
type unused struct {
	mu sync.Mutex
	of map[handle]refusal
}

type refusal struct {
	err   error
	until time.Time
}

// adapterOf is Device.adapterOf for a request; told reports that the error was said before.
func (u *unused) adapterOf(d *Device, dev handle) (a *rnic, told bool, err error) {
	if a = d.inUse(dev); a != nil {
		return a, false, nil
	}
	if err = u.told(dev); err != nil {
		return nil, true, err
	}
	if a, err = d.adapterOf(dev); err != nil {
		u.tell(dev, err)
	}
	return a, false, err
}

// told is why an adapter was found not to be used, a short while ago.
func (u *unused) told(dev handle) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if r, known := u.of[dev]; known && time.Now().Before(r.until) {
		return r.err
	}
	return nil
}

func (u *unused) tell(dev handle, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[handle]refusal{}
	}
	u.of[dev] = refusal{err, time.Now().Add(unusedTime)}
}
