package verbs

import (
	"errors"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/internal/threads"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Device is all the adapters that Options name. All its methods may be called by any goroutine.
type Device struct {
	tab  table
	opt  Options
	caps transport.Caps

	mu       sync.Mutex
	closed   bool
	settled  bool // caps are what every adapter can do
	adapters map[handle]*rnic
	late     map[handle]error // adapters that came later and cannot do that
	qps      map[*QP]struct{} // those that have objects of the library
	lns      map[*listener]struct{}
	reqs     map[*request]struct{}
	wg       sync.WaitGroup // ends of queue pairs, event loops, what is destroyed aside
	stop     chan struct{}
	left     int  // objects that the library still uses, of connections that have ended (later)
	over     bool // Close is through: the object that goes last destroys what the device has

	mem    memory
	cm     manager
	unused unused
	waker  waker
}

var (
	_ transport.Device = (*Device)(nil)
	_ transport.Waker  = (*Device)(nil)
)

// Available says whether there is anything for Open to open: the libraries, the connection manager, and an adapter that can
// be used. Each is tried. The error says what is missing, and what to do.
func Available() error {
	tab, err := openTable()
	if err != nil {
		return err
	}
	return available(tab)
}

func available(tab table) error {
	devs, err := devicesOf(tab)
	if err != nil {
		return err
	}
	if err := manages(tab); err != nil {
		return err
	}
	probe := &Device{tab: tab, opt: Options{}.withDefaults()}
	var errs []error
	for i := range devs {
		_, err := probe.try(&devs[i])
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return inOneLine(errs...)
}

// devicesOf lists the adapters, of which there are some.
func devicesOf(tab table) ([]deviceAttr, error) {
	devs, err := tab.Devices()
	if err != nil {
		return nil, fmt.Errorf("verbs: list the RDMA devices: %w", err)
	}
	if len(devs) == 0 {
		return nil, noDevices()
	}
	return devs, nil
}

// Open makes a device of the adapters that there are.
func Open(o Options) (*Device, error) {
	threads.KeepApart()
	tab, err := openTable()
	if err != nil {
		return nil, err
	}
	return open(tab, o)
}

func open(tab table, o Options) (*Device, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	devs, err := devicesOf(tab)
	if err != nil {
		return nil, err
	}
	d := &Device{tab: tab, opt: o, adapters: map[handle]*rnic{}, late: map[handle]error{}, qps: map[*QP]struct{}{}, lns: map[*listener]struct{}{},
		reqs: map[*request]struct{}{}, stop: make(chan struct{})}
	d.mem.init(d)
	if err := d.cm.open(d); err != nil {
		return nil, err
	}
	if err := d.tryAckTimeout(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.mu.Lock()
	shut, err := d.adoptAllLocked(devs)
	n := len(d.adapters)
	d.mu.Unlock()
	if n == 0 || err != nil && len(o.Devices) > 0 {
		switch {
		case err != nil:
		case len(shut) > 0:
			err = &ExposureError{Devices: shut}
		default:
			err = errNoSuchDevice(o.Devices, devs)
		}
		return nil, errors.Join(err, d.Close())
	}
	d.warn("an RDMA device cannot be used", err)
	if len(shut) > 0 {
		d.warn("an RDMA device is not used, for what it would expose", &ExposureError{Devices: shut})
	}
	d.settleCaps()
	return d, nil
}

// Name is "verbs".
func (d *Device) Name() string { return "verbs" }

// Caps is what all the adapters can do that were there when the device was opened. One that comes later and can do less is not used.
func (d *Device) Caps() transport.Caps { return d.caps }

// NewQP makes an unconnected queue pair. It has objects of an adapter only when the connection's route names the adapter.
func (d *Device) NewQP(o transport.QPOptions) (transport.QP, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return nil, transport.ErrClosed
	}
	return newQP(d, o)
}

// Register makes a slab known to all adapters in use, and to those that are used later.
func (d *Device) Register(s *mem.Slab) error { return d.mem.register(s) }

// Unregister takes a slab back from all adapters. No work request may name it any more.
func (d *Device) Unregister(s *mem.Slab) error { return d.mem.unregister(s) }

// Close ends all connections and listeners, waits until the adapters have let go of all memory, and frees what there is.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		d.wg.Wait()
		return nil
	}
	d.closed = true
	close(d.stop)
	var lns []*listener
	for l := range d.lns {
		lns = append(lns, l)
	}
	d.mu.Unlock()
	for _, l := range lns {
		_ = l.Close() // says nothing that matters now
	}
	d.mu.Lock()
	var reqs []*request // there are no more
	for r := range d.reqs {
		reqs = append(reqs, r)
	}
	d.mu.Unlock()
	for _, r := range reqs {
		r.refuse()
	}
	for _, q := range d.queuePairs() {
		q.fail(transport.ErrClosed)
	}
	d.mu.Lock()
	adapters := make([]*rnic, 0, len(d.adapters))
	for _, a := range d.adapters {
		adapters = append(adapters, a)
	}
	d.mu.Unlock()
	d.cm.stopLoop()
	for _, a := range adapters {
		a.stopLoop()
	}
	d.wg.Wait()
	for _, a := range adapters {
		leaveHub(a)
	}
	d.mem.close()
	d.mu.Lock()
	d.over = true
	last := d.left == 0
	d.mu.Unlock()
	if last {
		d.finish()
	}
	return nil
}

// finish frees what other objects are made in.
func (d *Device) finish() {
	d.mem.free()
	d.cm.close()
}

// later runs f, which waits for the library as long as it takes, and does not keep Close waiting: the adapter has no memory of what f frees.
func (d *Device) later(f func()) {
	d.mu.Lock()
	d.left++
	d.mu.Unlock()
	go func() {
		f()
		d.mu.Lock()
		d.left--
		last := d.over && d.left == 0
		d.mu.Unlock()
		if last {
			d.finish()
		}
	}()
}

// queuePairs are those that have objects of the library now.
func (d *Device) queuePairs() []*QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	qps := make([]*QP, 0, len(d.qps))
	for q := range d.qps {
		qps = append(qps, q)
	}
	return qps
}

// adopt counts a queue pair in; its end must come. It refuses when the device is closed.
func (d *Device) adopt(q *QP) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.qps[q] = struct{}{}
	d.wg.Add(1)
	return true
}

// drop is the end of a queue pair.
func (d *Device) drop(q *QP) {
	d.mu.Lock()
	delete(d.qps, q)
	if q.made() {
		q.a.past.completions += q.polled.Load()
	}
	d.mu.Unlock()
	d.wg.Done()
}

// enter counts a goroutine in that Close waits for; false when the device is closed.
func (d *Device) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.wg.Add(1)
	return true
}

// aside runs f, which may block in the library, for an event loop, which Close waits for too.
func (d *Device) aside(f func()) {
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		f()
	}()
}

func (d *Device) warn(what string, err error, f ...zap.Field) {
	if err != nil {
		d.opt.Log.Warn(what, append(f, zap.Error(err))...)
	}
}

// qpOf checks that q is an unused queue pair of this device.
func (d *Device) qpOf(q transport.QP) (*QP, error) {
	x, ok := q.(*QP)
	if !ok || x.dev != d {
		return nil, errForeignQP
	}
	if x.dead() {
		return nil, x.why()
	}
	if x.used() {
		return nil, errUsedQP
	}
	return x, nil
}
