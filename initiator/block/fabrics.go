package block

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// fabrics are the devices that know the Initiator's memory: Options.Device first, if there is one, and those that URLs named.
type fabrics struct {
	mu      sync.Mutex
	devices []transport.Device
}

// device is what an iser:// URL goes through.
func (i *Initiator) device(u *URL) (transport.Device, error) {
	o := &i.o
	if o.Device != nil && (u.Provider == "" || u.Provider == o.Device.Name()) && u.Exposure == "" {
		return o.Device, nil
	}
	if o.Provider == nil {
		if o.Device != nil && u.Exposure != "" { // what it exposes was settled when it was opened
			return nil, badURL("exposure=%s asks for a device of its own, and there is only the one that the program has opened: leave exposure out, or give the Initiator a Provider", u.Exposure)
		}
		if u.Provider != "" {
			return nil, badURL("there is no provider %q here", u.Provider)
		}
		return nil, errors.New("block: no RDMA device was configured for iser://")
	}
	d, err := o.Provider(u.Provider, u.Exposure)
	if err != nil {
		return nil, fmt.Errorf("block: %w", err)
	}
	i.known.mu.Lock()
	defer i.known.mu.Unlock()
	if slices.Contains(i.known.devices, d) {
		return d, nil
	}
	i.spare.mu.Lock()
	defer i.spare.mu.Unlock()
	if err := i.knowLocked(d, true); err != nil {
		return nil, err
	}
	i.known.devices = append(i.known.devices, d)
	return d, nil
}

// makeZeroes makes the memory of what is written as zeroes. It is no part of the pool, so that the pool is empty until it is used, and of the kind
// that every device takes, where the system has that.
func (i *Initiator) makeZeroes() error {
	s, err := mem.Shared.NewSlab(mem.PageSize)
	if err != nil {
		s, err = mem.NewSlab(mem.PageSize)
	}
	if err != nil {
		return fmt.Errorf("block: memory: %w", err)
	}
	i.zeroes, i.zero = s, mem.Span{Slab: s, Len: mem.PageSize}
	return nil
}

// knowLocked makes the Initiator's memory known to a device. Memory that the device's peers read becomes such memory, while nothing of it is in use.
// known.mu and spare.mu are held, or nothing else knows the Initiator yet.
func (i *Initiator) knowLocked(d transport.Device, pool bool) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("block: register memory with %s: %w", d.Name(), err)
		}
	}()
	if d.Caps().Memory == mem.Shared {
		if err := i.pool.Share(); err != nil {
			return err
		}
		if i.spare.pool != nil {
			if err := i.spare.pool.Share(); err != nil {
				return err
			}
		}
	}
	if err := d.Register(i.zeroes); err != nil {
		return err
	}
	if pool {
		if err := i.pool.OnSlab(d); err != nil {
			return errors.Join(err, d.Unregister(i.zeroes))
		}
	}
	if i.spare.pool != nil {
		if err := i.spare.pool.OnSlab(d); err != nil {
			return errors.Join(err, i.pool.Forget(d), d.Unregister(i.zeroes))
		}
	}
	return nil
}

// forgetZeroes takes that memory from all devices.
func (f *fabrics) forgetZeroes(i *Initiator) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, d := range f.devices {
		errs = append(errs, d.Unregister(i.zeroes))
	}
	return errors.Join(errs...)
}

// woken is closed when the device that u goes through may have a way again; nil where there is nothing to hear.
func (i *Initiator) woken(u *URL) <-chan struct{} {
	if !u.ISER {
		return nil
	}
	d, err := i.device(u)
	if err != nil {
		return nil
	}
	return transport.Woken(d)
}

func fired(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// forget takes a pool that is the caller's from the devices that URLs named.
func (f *fabrics) forget(i *Initiator) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, d := range f.devices {
		if d != i.o.Device {
			errs = append(errs, i.pool.Forget(d))
		}
	}
	f.devices = nil
	return errors.Join(errs...)
}
