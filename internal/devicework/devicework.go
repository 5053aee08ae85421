// Package devicework has the device requests that the owner of a connection (internal/owner) performs itself.
package devicework

import (
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
)

// Work is a device request that waits for the owner.
type Work struct {
	By      blockdev.Performer
	Request *blockdev.Request
}

// Perform performs it.
func (w Work) Perform() { w.By.Perform(w.Request) }

// Apart performs the work that the end of a connection has overtaken: the data had arrived, and the device may count on it for what others
// have submitted, but a medium that hangs must not keep the end from coming. Each device has a goroutine while there is some, so that one
// that hangs keeps no other device's work, and a connection costs no more threads than it has devices. The zero value is ready.
type Apart struct {
	mu      sync.Mutex
	waiting map[blockdev.Performer][]Work // behind the one that is performed; there is an entry while a goroutine is
}

// Perform has w performed, behind what it was given before for the same device. It does not wait.
func (a *Apart) Perform(w Work) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before, busy := a.waiting[w.By]
	if busy {
		a.waiting[w.By] = append(before, w)
		return
	}
	if a.waiting == nil {
		a.waiting = make(map[blockdev.Performer][]Work)
	}
	a.waiting[w.By] = nil
	go a.run(w)
}

func (a *Apart) run(w Work) {
	for more := true; more; w, more = a.next(w.By) {
		w.Perform()
	}
}

// next is the next work of a device, if there is some.
func (a *Apart) next(by blockdev.Performer) (Work, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.waiting[by]
	if len(l) == 0 {
		delete(a.waiting, by)
		return Work{}, false
	}
	a.waiting[by] = l[1:]
	return l[0], true
}
