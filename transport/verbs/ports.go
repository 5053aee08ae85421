package verbs

import (
	"fmt"
	"sync"
)

// ports is what events have said of the ports of an adapter.
type ports struct {
	mu   sync.Mutex
	down map[int]bool
	news chan struct{} // closed and replaced when that changes, or the adapter goes
}

func newPorts() ports { return ports{down: map[int]bool{}, news: make(chan struct{})} }

// state is whether a port is down, and what is closed when that may have changed.
func (p *ports) state(port int) (down bool, news <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down[port], p.news
}

func (p *ports) set(port int, down bool) {
	p.mu.Lock()
	p.down[port] = down
	close(p.news)
	p.news = make(chan struct{})
	p.mu.Unlock()
}

// leave makes the adapter one that is gone.
func (a *rnic) leave() {
	a.gone.Store(true)
	a.ports.set(0, false)
}

func downText(port int) string { return fmt.Sprintf("port %d is down", port) }

// checkPort refuses what cannot succeed. An event may have been missed, so the adapter has the last word.
func (a *rnic) checkPort(port int) error {
	if down, _ := a.ports.state(port); !down {
		return nil
	}
	if p, err := a.d.tab.Port(a.attr.Dev, port); err == nil && p.State == portActive {
		a.ports.set(port, false)
		return nil
	}
	return &LinkError{Device: a.attr.Name, Reason: downText(port)}
}

// mute reports whether the connection manager cannot tell the peer of q's end: its messages go by the same port. rxe, whose interface is
// down, knows no route and takes a message that it cannot send for an error of the queue pair that all of them go through: this one
// receives nothing from then on (rxe_requester, rxe_qp_error), and the adapter makes no connection any more, for any queue pair. Data meet
// the same error, often before the event of the port is here.
func (q *QP) mute() bool {
	a := q.a
	if a == nil || !q.known || a.gone.Load() || a.attr.Kind == kindIWARP { // whose connections are TCP's
		return false
	}
	down, _ := a.ports.state(q.path.Port)
	return down || localError(q.why())
}

// maxParting bounds the identifiers that wait for a port.
const maxParting = 1024

// part destroys id, the rest of a connection whose end could not be told, when the port is back: the peer is told then, and need not
// find out by its own timers.
func (a *rnic) part(id handle, port int) {
	d := a.d
	if a.parting.Add(1) > maxParting || !d.enter() {
		a.parting.Add(-1)
		d.cm.dropID(id)
		return
	}
	d.cm.give(id, parted{a})
	go func() {
		defer d.wg.Done()
		defer a.parting.Add(-1)
		moment := d.opt.after(lingerTime) // for the event, where an error came before it
		for !a.gone.Load() {
			down, news := a.ports.state(port)
			if !down && moment == nil {
				break
			}
			select {
			case <-news:
				moment = nil
			case <-moment:
				moment = nil
			case <-d.stop:
				d.cm.dropID(id)
				return
			}
		}
		d.cm.dropID(id)
	}()
}

// parted owns an id of which only the adapter's end is of interest.
type parted struct{ a *rnic }

func (p parted) cmEvent(e cmEvent) {
	if e.Kind == cmDeviceRemoval {
		p.a.leave()
	}
}

// waker tells those who wait for a way to connect.
type waker struct {
	mu sync.Mutex
	ch chan struct{}
}

// Woken is closed when a port of an adapter is back, or an adapter.
func (d *Device) Woken() <-chan struct{} {
	w := &d.waker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

func (w *waker) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}
