package verbs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// rnic is one adapter that is used.
type rnic struct {
	d    *Device
	attr deviceAttr
	trait

	file *os.File // its asynchronous events

	*asyncHub
	qps     map[handle]*QP
	ports   ports
	parting atomic.Int32 // identifiers that wait for a port
	gone    atomic.Bool  // for good: one that comes back is another
	past    tally
}

// trait is what differs between adapters and is told by none of their attributes.
type trait struct {
	windows bool // of type 2B: tried
	exact   bool // a window's own bounds are checked
	ownPD   bool // a peer may end any STag of its protection domain: each connection has one of its own
	sinks   bool // the sink of a Read must be open to remote writes
	noMark  bool // a queue pair in ERR takes no request to mark the end of what is outstanding
	holdsQP bool // a bound window holds its queue pair: it is freed first
	turned  bool // the depths of a reply come the other way round
	outOf   bool // what is posted behind a Read may complete before it
	piece   bool // a receive names memory, even one of no bytes
	raises  bool // a reply promises to serve as many Reads as the request asks for
}

// traitOf knows the soft devices of the kernel and the kinds of hardware.
func traitOf(a *deviceAttr, windows bool) trait {
	rxe, siw := strings.HasSuffix(a.Driver, "rxe"), strings.HasSuffix(a.Driver, "siw")
	return trait{
		windows: windows,
		exact:   windows && !rxe, // rxe's responder looks at the bounds of the region below the window
		ownPD:   siw,             // siw_invalidate_stag takes any STag of the domain
		sinks:   a.Kind == kindIWARP && !siw,
		noMark:  siw, // siw_post_send of a queue that is mapped to user space does nothing in ERR
		holdsQP: rxe, // rxe_do_bind_mw takes a reference, for which rxe_destroy_qp waits 50 s
		turned:  siw, // siw_proc_mpareply keeps the peer's ORD as its ird, and siw_cm_upcall passes that on as ours
		outOf:   siw, // siw_qp_sq_process completes a Send when TCP has it, siw_rdmap_complete a Read when the answer is here
		piece:   siw, // siw_post_receive: EINVAL without one
		raises:  siw, // siw_accept: relaxed_ird_negotiation
	}
}

// adoptAllLocked takes the adapters of devs that are wanted and new; d.mu is held. One that cannot be used is an error and does
// not keep the others away; shut are those left alone for what they would expose.
func (d *Device) adoptAllLocked(devs []deviceAttr) (shut []string, err error) {
	var errs []error
	for i := range devs {
		if _, there := d.adapters[devs[i].Dev]; there || !d.opt.takes(devs[i].Name) {
			continue
		}
		if d.opt.shuts(&devs[i]) {
			shut = append(shut, devs[i].Name)
			continue
		}
		if err := d.adoptOne(devs[i]); err != nil {
			errs = append(errs, err)
		}
	}
	return shut, inOneLine(errs...)
}

func (d *Device) adoptOne(attr deviceAttr) error {
	if err := d.late[attr.Dev]; err != nil {
		return err // said before
	}
	windows, err := d.try(&attr)
	if err != nil {
		return err
	}
	a := &rnic{d: d, attr: attr, trait: traitOf(&attr, windows), qps: map[handle]*QP{}, ports: newPorts()}
	if err := d.fitsLocked(a); err != nil {
		d.late[attr.Dev] = err
		d.warn("an RDMA device is not used", err)
		return err
	}
	if a.file, err = pollable(d.tab.AsyncFD(attr.Dev), attr.Name); err != nil {
		return fmt.Errorf("verbs: %s: events: %w", attr.Name, err)
	}
	// The adapter knows a pool's memory from here, before the first connection: what cannot be registered is then not mapped, whatever
	// makes the pool grow meanwhile.
	if !a.private() {
		if _, err := d.mem.domainFor(a, false); err != nil {
			return errors.Join(err, a.file.Close())
		}
	}
	d.adapters[attr.Dev] = a
	d.waker.wake()
	a.asyncHub = joinHub(a)
	d.wg.Add(1)
	go a.loop()
	d.opt.Log.Info("an RDMA device is used", zap.String("device", attr.Name), zap.String("driver", attr.Driver), zap.Bool("windows", windows))
	if a.sinks {
		d.opt.Log.Warn("all registered memory is open to writes of the peers of an RDMA device, as configured (exposure: whole-slab)", zap.String("device", attr.Name))
	}
	return nil
}

// try does with an adapter what its use begins with. Capability bits are not enough: one driver advertises windows that its
// library cannot bind. And an adapter that cannot register the memory of one slab would keep every pool from growing.
func (d *Device) try(a *deviceAttr) (windows bool, err error) {
	wrap := func(what string, err error) error { return fmt.Errorf("verbs: %s: %s: %w", a.Name, what, err) }
	slab, err := mem.NewSlab(mem.SlabSize)
	if err != nil {
		return false, wrap("try it", err)
	}
	defer func() { d.warn("memory could not be unmapped", slab.Close()) }()
	pd, err := d.tab.AllocPD(a.Dev)
	if err != nil {
		return false, wrap("allocate a protection domain", err)
	}
	defer func() { d.warn("a protection domain could not be freed", d.tab.DeallocPD(pd)) }()
	mr, _, _, err := d.tab.RegMR(pd, uintptr(unsafe.Pointer(unsafe.SliceData(slab.Bytes()))), mem.SlabSize, accessLocalWrite)
	if err != nil {
		return false, wrap(fmt.Sprintf("register %d MiB of memory, the least that is of use", mem.SlabSize>>20), err)
	}
	d.warn("a memory region could not be freed", d.tab.DeregMR(mr))
	mw, _, err := d.tab.AllocMW(pd)
	switch {
	case err == nil:
		d.warn("a memory window could not be freed", d.tab.DeallocMW(mw))
	case !errors.Is(err, errNotSupported): // it has them: an adapter that is used without would do less for good
		return false, wrap("allocate a memory window", err)
	}
	return err == nil, nil
}

// inUse is an adapter that is used already, or nil.
func (d *Device) inUse(dev handle) *rnic {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.adapters[dev]
}

// adapterOf finds the adapter that a connection goes over; one that came later is taken now.
func (d *Device) adapterOf(dev handle) (*rnic, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, transport.ErrClosed
	}
	if a := d.adapters[dev]; a != nil {
		return a, nil
	}
	devs, err := d.tab.Devices()
	var shut []string
	if err == nil {
		shut, err = d.adoptAllLocked(devs)
	}
	if a := d.adapters[dev]; a != nil {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	for i := range devs {
		if devs[i].Dev == dev && slices.Contains(shut, devs[i].Name) {
			return nil, &ExposureError{Devices: []string{devs[i].Name}}
		}
		if devs[i].Dev == dev {
			return nil, fmt.Errorf("verbs: the way goes over %s, which is not among the devices configured (%s)", devs[i].Name, strings.Join(d.opt.Devices, ", "))
		}
	}
	return nil, &LinkError{Reason: "the RDMA device of this connection is gone"}
}

// loop takes asynchronous events until the device is closed.
func (a *rnic) loop() {
	defer a.d.wg.Done()
	watch(a.d, a.file, func() error {
		a.asyncMu.Lock()
		defer a.asyncMu.Unlock()
		for {
			e, ok, err := a.d.tab.Async(a.attr.Dev)
			if err != nil || !ok {
				return err
			}
			for _, x := range a.all {
				x.eventLocked(e)
			}
		}
	})
}

func (a *rnic) stopLoop() { _ = a.file.Close() } // a descriptor of ours: it says nothing

// eventLocked acts on e; asyncMu is held.
func (a *rnic) eventLocked(e asyncEvent) {
	log := a.d.opt.Log.With(zap.String("device", a.attr.Name))
	a.past.events[e.Kind].Add(1)
	switch e.Kind {
	case asyncDeviceFatal:
		log.Warn("the RDMA device is gone or has failed", zap.String("event", e.Text))
		a.leave()
		a.failAll(0, "the RDMA device was removed or has failed")
	case asyncPortError:
		log.Warn("a port of the RDMA device is down", zap.Int("port", e.Port))
		a.ports.set(e.Port, true)
		a.failAll(e.Port, downText(e.Port))
	case asyncPortActive:
		log.Info("a port of the RDMA device is up", zap.Int("port", e.Port))
		a.ports.set(e.Port, false)
		a.d.waker.wake()
	case asyncQPFatal:
		if q := a.qps[e.QP]; q != nil {
			q.fail(&LinkError{Device: a.attr.Name, Reason: "the adapter stopped the connection (" + e.Text + ")"})
		}
	case asyncCQError:
		for _, q := range a.qps {
			if q.cq == e.CQ {
				q.fail(&LinkError{Device: a.attr.Name, Reason: "a completion queue failed (" + e.Text + ")"})
			}
		}
	}
}

// failAll ends the connections of a port, or of all ports.
func (a *rnic) failAll(port int, reason string) {
	for _, q := range a.qps {
		if port == 0 || q.path.Port == port {
			q.fail(&LinkError{Device: a.attr.Name, Reason: reason})
		}
	}
}
