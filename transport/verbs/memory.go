package verbs

import (
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"unsafe"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// memory is what may be named in work requests: all slabs, in all protection domains. Registration pins pages and takes its
// time; connections do not wait for it, they look at tables that are never changed (domain.local).
type memory struct {
	d *Device

	mu      sync.Mutex
	closed  bool
	slabs   map[uint32]*mem.Slab
	domains map[*domain]struct{}
	shared  map[*rnic]*domain
	full    bool // the last slab was refused for lack of room, and that was said
}

// domain is a protection domain and the regions in it.
type domain struct {
	a  *rnic
	pd handle
	// local is what our own requests name. open is the same memory for the peer, where there are no windows and whole slabs may
	// be exposed: nil until the connection's upper protocol exposes anything.
	local, open atomic.Pointer[regions]
	slim        bool                    // has what is used in it, not all slabs; guarded by memory.mu
	coming      atomic.Pointer[regions] // what a slim one has beyond that, while it is given all; guarded by memory.mu
}

// regions are slabs by their ID. A table that is in use is never changed.
type regions map[uint32]region

type region struct {
	mr         handle
	addr       uint64
	size       int
	lkey, rkey uint32
}

func (m *memory) init(d *Device) {
	m.d, m.slabs, m.domains, m.shared = d, map[uint32]*mem.Slab{}, map[*domain]struct{}{}, map[*rnic]*domain{}
}

func (m *memory) register(s *mem.Slab) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return transport.ErrClosed
	}
	if m.slabs[s.ID()] != nil {
		return fmt.Errorf("verbs: slab %d is registered twice", s.ID())
	}
	for dom := range m.domains {
		// An adapter that is gone knows no memory any more, and must not keep the others' from growing.
		if dom.a.gone.Load() || dom.slim {
			continue
		}
		if err := m.add(dom, s); err != nil && !dom.a.gone.Load() {
			if errors.Is(err, mem.ErrNoRoom) && !m.full {
				m.full = true
				m.d.opt.Log.Warn("no more memory can be registered with an RDMA device: what waits for a buffer waits for those there are", zap.Error(err))
			}
			return errors.Join(err, m.removeAll(s))
		}
	}
	m.full = false
	m.slabs[s.ID()] = s
	return nil
}

func (m *memory) unregister(s *mem.Slab) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.slabs, s.ID())
	return m.removeAll(s)
}

func (m *memory) removeAll(s *mem.Slab) error {
	var errs []error
	for dom := range m.domains {
		errs = append(errs, m.remove(dom, &dom.local, s.ID()), m.remove(dom, &dom.open, s.ID()), m.remove(dom, &dom.coming, s.ID()))
	}
	return errors.Join(errs...)
}

// domainFor is the domain of a connection over a: the adapter's, or one of its own, which may be slim.
func (m *memory) domainFor(a *rnic, slim bool) (*domain, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, transport.ErrClosed
	}
	if dom := m.shared[a]; dom != nil {
		return dom, nil
	}
	pd, err := m.d.tab.AllocPD(a.attr.Dev)
	if err != nil {
		return nil, fmt.Errorf("verbs: %s: allocate a protection domain: %w", a.attr.Name, err)
	}
	dom := &domain{a: a, pd: pd, slim: slim && a.private()}
	dom.local.Store(&regions{})
	dom.coming.Store(&regions{})
	if !dom.slim {
		if err := m.addAllLocked(dom); err != nil {
			m.dropLocked(dom)
			return nil, err
		}
	}
	m.domains[dom] = struct{}{}
	if !a.private() {
		m.shared[a] = dom
	}
	return dom, nil
}

// addAllLocked adds the slabs that a domain has not; m.mu is held.
func (m *memory) addAllLocked(dom *domain) error {
	for id, s := range m.slabs {
		if _, there := (*dom.local.Load())[id]; there {
			continue
		}
		if err := m.add(dom, s); err != nil {
			return err
		}
	}
	return nil
}

// widen makes a slim domain one that has all memory, as others have: from here on what has no room in it is not mapped. To pin all takes
// long, and others want m.mu: it is held for one slab at a time.
func (m *memory) widen(dom *domain) error {
	for {
		if done, err := m.widenSome(dom); done || err != nil {
			return err
		}
	}
}

// widenSome registers a slab more, and shows them when all are there, or takes them back: a request may name what is shown.
func (m *memory) widenSome(dom *domain) (done bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, is := m.domains[dom]; !is || m.closed {
		return false, transport.ErrClosed
	}
	if !dom.slim {
		return true, nil
	}
	for id, s := range m.slabs {
		if _, there := (*dom.local.Load())[id]; there {
			continue
		}
		if _, there := (*dom.coming.Load())[id]; there {
			continue
		}
		if err = m.put(dom, &dom.coming, s, dom.a.rights()); err == nil {
			return false, nil
		}
		for id := range *dom.coming.Load() {
			err = errors.Join(err, m.remove(dom, &dom.coming, id))
		}
		return false, err
	}
	for id := range *dom.coming.Load() {
		if err := m.show(dom, m.slabs[id]); err != nil {
			return false, err
		}
	}
	dom.slim = false
	return true, nil
}

// show makes a region that widenSome has made one that requests name.
func (m *memory) show(dom *domain, s *mem.Slab) error {
	shown, coming := regions{}, regions{}
	maps.Copy(shown, *dom.local.Load())
	maps.Copy(coming, *dom.coming.Load())
	shown[s.ID()] = coming[s.ID()]
	delete(coming, s.ID())
	dom.local.Store(&shown)
	dom.coming.Store(&coming)
	return m.addOpen(dom, s)
}

// local finds a span among what our own requests of a domain name; a slim one learns of the slab.
func (m *memory) local(dom *domain, known *regions, s mem.Span) (region, error) {
	r, err := known.find(s)
	if err == nil || s.Slab == nil {
		return r, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, there := (*dom.local.Load())[s.Slab.ID()]; !there && dom.slim && m.slabs[s.Slab.ID()] == s.Slab && !m.closed {
		learn := m.add
		if _, coming := (*dom.coming.Load())[s.Slab.ID()]; coming {
			learn = m.show
		}
		if err := learn(dom, s.Slab); err != nil {
			return region{}, err
		}
	}
	return dom.local.Load().find(s)
}

// private says that each connection over a has a protection domain of its own: where a peer may end regions of it, and
// where it may be given all of them.
func (a *rnic) private() bool { return a.ownPD || !a.windows && a.d.opt.WholeSlab }

// leave ends a connection's use of its domain.
func (m *memory) leave(dom *domain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shared[dom.a] != dom {
		m.dropLocked(dom)
	}
}

// forsake takes all memory from the domain of a connection that has ended and cannot be freed yet: it would stay locked, and grow.
func (m *memory) forsake(dom *domain) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.shared[dom.a] != dom {
		delete(m.domains, dom)
		m.emptyLocked(dom)
	}
}

// expose registers all slabs of a connection's own domain once more, for its peer.
func (m *memory) expose(dom *domain) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if dom.open.Load() != nil {
		return nil
	}
	dom.open.Store(&regions{})
	for _, s := range m.slabs {
		if err := m.put(dom, &dom.open, s, accessLocalWrite|accessRemoteRead|accessRemoteWrite); err != nil {
			return err // what there is goes with the domain
		}
	}
	return nil
}

func (m *memory) add(dom *domain, s *mem.Slab) error {
	err := m.put(dom, &dom.local, s, dom.a.rights())
	if err == nil {
		err = m.addOpen(dom, s)
	}
	return err
}

// addOpen gives the peer a slab that has come, where it has them all.
func (m *memory) addOpen(dom *domain, s *mem.Slab) error {
	have := dom.open.Load()
	if have == nil {
		return nil
	}
	if _, there := (*have)[s.ID()]; there {
		return nil
	}
	return m.put(dom, &dom.open, s, accessLocalWrite|accessRemoteRead|accessRemoteWrite)
}

// rights are those of memory that our own requests name.
func (a *rnic) rights() access {
	rights := accessLocalWrite
	if a.windows {
		rights |= accessMWBind
	}
	if a.sinks {
		rights |= accessRemoteWrite
	}
	return rights
}

func (m *memory) put(dom *domain, in *atomic.Pointer[regions], s *mem.Slab, rights access) error {
	b := s.Bytes()
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	mr, lkey, rkey, err := m.d.tab.RegMR(dom.pd, addr, uint64(len(b)), rights)
	if err != nil {
		return registerErr(dom.a.attr.Name, len(b), err)
	}
	next := regions{}
	for id, r := range *in.Load() {
		next[id] = r
	}
	next[s.ID()] = region{mr: mr, addr: uint64(addr), size: len(b), lkey: lkey, rkey: rkey}
	in.Store(&next)
	return nil
}

// registerErr is a refused registration. Where the limit of locked memory, or the adapter's own, is reached, it is no fault of
// anything: mem.ErrNoRoom.
func registerErr(device string, n int, err error) error {
	err = fmt.Errorf("verbs: %s: register %d bytes of memory: %w", device, n, err)
	if errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) {
		return &noRoomError{err}
	}
	return err
}

type noRoomError struct{ error }

func (e *noRoomError) Is(target error) bool { return target == mem.ErrNoRoom }
func (e *noRoomError) Unwrap() error        { return e.error }

func (m *memory) remove(dom *domain, from *atomic.Pointer[regions], id uint32) error {
	have := from.Load()
	if have == nil {
		return nil
	}
	r, ok := (*have)[id]
	if !ok {
		return nil
	}
	next := regions{}
	for k, v := range *have {
		if k != id {
			next[k] = v
		}
	}
	from.Store(&next)
	if err := m.d.tab.DeregMR(r.mr); err != nil && !dom.a.gone.Load() { // the kernel has done it where the adapter is gone
		return fmt.Errorf("verbs: deregister memory: %w", err)
	}
	return nil
}

// emptyLocked deregisters a domain's regions; m.mu is held.
func (m *memory) emptyLocked(dom *domain) {
	for _, t := range []*atomic.Pointer[regions]{&dom.open, &dom.local, &dom.coming} {
		if t.Load() == nil {
			continue
		}
		for _, r := range *t.Swap(&regions{}) {
			m.d.warn("a memory region could not be freed", m.d.tab.DeregMR(r.mr))
		}
	}
}

// dropLocked frees a domain; m.mu is held.
func (m *memory) dropLocked(dom *domain) {
	delete(m.domains, dom)
	m.emptyLocked(dom)
	m.d.warn("a protection domain could not be freed", m.d.tab.DeallocPD(dom.pd))
}

// close makes the adapters let go of all memory.
func (m *memory) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for dom := range m.domains {
		m.emptyLocked(dom)
	}
}

// free frees the domains, when nothing is made in them any more.
func (m *memory) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for dom := range m.domains {
		m.dropLocked(dom)
	}
}

// find is where a span is in a table.
func (t *regions) find(s mem.Span) (region, error) {
	if s.Slab == nil {
		return region{}, errNoBuf
	}
	r, ok := (*t)[s.Slab.ID()]
	if !ok {
		return region{}, fmt.Errorf("verbs: slab %d is not registered with this device", s.Slab.ID())
	}
	if s.Off < 0 || s.Len < 0 || s.Off > r.size-s.Len {
		return region{}, fmt.Errorf("verbs: bytes [%d,%d) of a slab of %d", s.Off, s.Off+s.Len, r.size)
	}
	return r, nil
}
