package verbs

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// simKind is a make of adapter.
type simKind struct {
	driver   string
	fabric   fabricKind
	windows  bool
	exact    bool // windows' bounds are checked
	random   bool // keys are random
	invalAll bool // a peer's Send with Invalidate ends any key of the domain
	sinks    bool // the sink of a Read must be open to remote writes
	noMark   bool // a queue in ERR takes no requests
	holdsQP  bool // a bound window holds its queue pair
	flushes  bool // its first error is that of what it flushes
	outOf    bool // completions of Reads are overtaken; no fenced Reads, no receives without a piece
}

var simKinds = map[string]simKind{
	"mlx5":    {driver: "mlx5_core", fabric: kindIB, windows: true, exact: true, random: true},
	"rxe":     {driver: "rdma_rxe", fabric: kindIB, windows: true, holdsQP: true},
	"rxe6.12": {driver: "rdma_rxe", fabric: kindIB, windows: true, holdsQP: true, flushes: true},
	"siw":     {driver: "siw", fabric: kindIWARP, invalAll: true, noMark: true, random: true, outOf: true},
	"cxgb4":   {driver: "iw_cxgb4", fabric: kindIWARP, sinks: true},
	"bnxt":    {driver: "bnxt_re", fabric: kindIB},
}

// sim is rdma-core and the adapters of one machine, or of two that share a network: nothing tells. Work is carried out within
// the calls that post it, under one lock; completions of a queue come in the order of its requests, but siw's of Reads, which
// come when the answer does; errors stop it.
type sim struct {
	t testing.TB

	mu    sync.Mutex
	next  handle
	obj   map[handle]any
	kids  map[handle]int // objects made in this one, still there
	nics  []*simNIC
	ports map[netip.AddrPort]*simID // listeners
	port  uint16
	bad   []string // violations of the library's rules
	// fail is asked in each call that can fail: an error is the call's.
	fail  func(call string) error
	holds bool     // responders hold Reads back
	acks  [2]uint8 // acknowledgement timeouts of the last connection: the dialler's, the other's
}

type simNIC struct {
	dev   handle
	name  string
	kind  simKind
	addrs []netip.Addr
	down  bool
	way   bool // the system has a route by it all the same: it is the carrier that is lost
	late  bool // it does not know yet that its port is down
	deaf  bool // the queue pair of the connection manager's messages receives nothing any more
	gone  bool
	ev    *simFD
	async []asyncEvent
	key   uint32
}

type simPD struct {
	nic  *simNIC
	keys map[uint32]any // *simMR, *simMW
}

type simMR struct {
	pd         *simPD
	addr       uint64
	size       uint64
	rights     access
	lkey, rkey uint32
	dead       bool
}

type simMW struct {
	pd    *simPD
	rkey  uint32
	bound bool
	qp    *simQP
	mr    *simMR
	addr  uint64
	size  uint64
	right access
}

type simCh struct {
	fd *simFD
	n  int
}

type simCQ struct {
	ch    *simCh
	size  int
	armed bool
	comps []workComp
}

func newSim(t testing.TB) *sim {
	s := &sim{t: t, next: 1 << 20, obj: map[handle]any{}, kids: map[handle]int{}, ports: map[netip.AddrPort]*simID{}, port: 40000}
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.bad {
			t.Errorf("the library's rules: %s", b)
		}
		for _, n := range s.nics {
			n.ev.close()
		}
	})
	return s
}

// add plugs an adapter in.
func (s *sim) add(name, kind string, addrs ...string) *simNIC {
	fd, err := newSimFD()
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	n := &simNIC{dev: s.next, name: name, kind: simKinds[kind], ev: fd, key: 0x1000}
	for _, a := range addrs {
		n.addrs = append(n.addrs, netip.MustParseAddr(a))
	}
	s.nics = append(s.nics, n)
	return n
}

// leaks are the objects that nothing has freed.
func (s *sim) leaks() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []string
	for h, o := range s.obj {
		left = append(left, fmt.Sprintf("%T %d", o, h))
	}
	return left
}

func (s *sim) enter(call string) error {
	if s.fail != nil {
		return s.fail(call)
	}
	return nil
}

func (s *sim) wrong(f string, a ...any) { s.bad = append(s.bad, fmt.Sprintf(f, a...)) }

func (s *sim) make(o any, parents ...handle) handle {
	s.next++
	h := s.next
	s.obj[h] = o
	for _, p := range parents {
		if p != 0 {
			s.kids[p]++
		}
	}
	return h
}

// gone takes an object away; its parents are those it was made with.
func (s *sim) gone(what string, h handle, parents ...handle) bool {
	if _, ok := s.obj[h]; !ok {
		s.wrong("%s of %d, which is not there", what, h)
		return false
	}
	if n := s.kids[h]; n != 0 {
		s.wrong("%s while %d objects were made in it", what, n)
	}
	delete(s.obj, h)
	for _, p := range parents {
		if p != 0 {
			s.kids[p]--
		}
	}
	return true
}

func get[T any](s *sim, h handle) (T, bool) {
	o, ok := s.obj[h].(T)
	if !ok {
		s.wrong("a call with handle %d, which is not there or another thing (%T)", h, s.obj[h])
	}
	return o, ok
}

func (s *sim) nic(dev handle) *simNIC {
	for _, n := range s.nics {
		if n.dev == dev {
			return n
		}
	}
	return nil
}

func (s *sim) Version() string { return "a model in Go" }

func (s *sim) Devices() ([]deviceAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Devices"); err != nil {
		return nil, err
	}
	var all []deviceAttr
	for _, n := range s.nics {
		if n.gone {
			continue
		}
		all = append(all, deviceAttr{Dev: n.dev, Name: n.name, Driver: n.kind.driver, Kind: n.kind.fabric, Ports: 1,
			MaxQP: 1 << 10, MaxQPWR: 1 << 14, MaxSGE: 16, MaxReadSGE: 1, MaxCQ: 1 << 10, MaxCQE: 1 << 16, MaxReadIn: 16, MaxReadOut: 16})
	}
	return all, nil
}

func (s *sim) Port(dev handle, port int) (portAttr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Port"); err != nil {
		return portAttr{}, err
	}
	p := portAttr{State: portActive, Link: linkEthernet, ActiveMTU: 4096, MaxMTU: 4096, MaxMessage: 8 << 20, GIDs: 1, PKeys: 1}
	if n := s.nic(dev); n.down && !n.late {
		p.State = portDown
	}
	return p, nil
}

func (s *sim) GIDs(dev handle, port int) ([]gidEntry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("GIDs"); err != nil {
		return nil, err
	}
	var all []gidEntry
	for i, a := range s.nic(dev).addrs {
		all = append(all, gidEntry{Index: i, GID: a.As16(), Kind: gidRoCEv2, Netdev: "eth0"})
	}
	return all, nil
}

func (s *sim) AsyncFD(dev handle) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nic(dev).ev.fd
}

func (s *sim) Async(dev handle) (asyncEvent, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Async"); err != nil {
		return asyncEvent{}, false, err
	}
	n := s.nic(dev)
	if len(n.async) == 0 {
		n.ev.clear()
		return asyncEvent{}, false, nil
	}
	e := n.async[0]
	n.async = n.async[1:]
	return e, true, nil
}

func (n *simNIC) say(e asyncEvent) {
	n.async = append(n.async, e)
	n.ev.set()
}

func (s *sim) AllocPD(dev handle) (handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("AllocPD"); err != nil {
		return 0, err
	}
	return s.make(&simPD{nic: s.nic(dev), keys: map[uint32]any{}}), nil
}

func (s *sim) DeallocPD(pd handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone("DeallocPD", pd)
	return s.enter("DeallocPD")
}

func (n *simNIC) fresh() uint32 {
	if n.kind.random {
		return rand.Uint32()&^0xff | 0x100
	}
	n.key += 0x100
	return n.key
}

// parent is the handle of pd, which its children remember by.
func (s *sim) parent(o any) handle {
	for h, x := range s.obj {
		if x == o {
			return h
		}
	}
	return 0
}

func (s *sim) RegMR(pd handle, addr uintptr, length uint64, a access) (handle, uint32, uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("RegMR"); err != nil {
		return 0, 0, 0, err
	}
	d, ok := get[*simPD](s, pd)
	if !ok {
		return 0, 0, 0, unix.EINVAL
	}
	if d.nic.gone {
		return 0, 0, 0, unix.EIO
	}
	if a&accessRemoteWrite != 0 && a&accessLocalWrite == 0 {
		s.wrong("RegMR with remote but no local write")
	}
	if a&accessMWBind != 0 && !d.nic.kind.windows {
		return 0, 0, 0, unix.EOPNOTSUPP
	}
	key := d.nic.fresh()
	m := &simMR{pd: d, addr: uint64(addr), size: length, rights: a, lkey: key, rkey: key}
	d.keys[key] = m
	return s.make(m, pd), key, key, nil
}

func (s *sim) DeregMR(mr handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m, ok := get[*simMR](s, mr); ok {
		m.dead = true
		delete(m.pd.keys, m.rkey)
		for _, o := range s.obj {
			if w, ok := o.(*simMW); ok && w.bound && w.mr == m {
				s.wrong("DeregMR under a bound window")
			}
		}
		s.gone("DeregMR", mr, s.parent(m.pd))
		if m.pd.nic.gone { // the kernel has done it already
			return unix.EIO
		}
	}
	return s.enter("DeregMR")
}

func (s *sim) AllocMW(pd handle) (handle, uint32, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, ok := get[*simPD](s, pd)
	if !ok || !d.nic.kind.windows {
		return 0, 0, errNotSupported
	}
	if err := s.enter("AllocMW"); err != nil {
		return 0, 0, err
	}
	w := &simMW{pd: d, rkey: d.nic.fresh()}
	return s.make(w, pd), w.rkey, nil
}

func (s *sim) DeallocMW(mw handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w, ok := get[*simMW](s, mw); ok {
		d := w.pd.nic
		delete(w.pd.keys, w.rkey)
		if w.qp != nil && w.bound && !w.qp.freed && !(w.qp.err && d.kind.holdsQP) {
			s.wrong("DeallocMW of a bound window before its queue pair was destroyed")
		}
		s.gone("DeallocMW", mw, s.parent(w.pd))
	}
	return s.enter("DeallocMW")
}

func (s *sim) CreateChannel(dev handle) (handle, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("CreateChannel"); err != nil {
		return 0, 0, err
	}
	fd, err := newSimFD()
	if err != nil {
		return 0, 0, err
	}
	return s.make(&simCh{fd: fd}), fd.fd, nil
}

func (s *sim) DestroyChannel(ch handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := get[*simCh](s, ch); ok {
		c.fd.close()
		s.gone("DestroyChannel", ch)
	}
	return s.enter("DestroyChannel")
}

func (s *sim) CreateCQ(dev handle, entries int, ch handle) (handle, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("CreateCQ"); err != nil {
		return 0, 0, err
	}
	c, ok := get[*simCh](s, ch)
	if !ok {
		return 0, 0, unix.EINVAL
	}
	return s.make(&simCQ{ch: c, size: entries}, ch), entries, nil
}

func (s *sim) DestroyCQ(cq handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := get[*simCQ](s, cq); ok {
		s.gone("DestroyCQ", cq, s.parent(c.ch))
	}
	return s.enter("DestroyCQ")
}

func (s *sim) Arm(cq handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Arm"); err != nil {
		return err
	}
	if c, ok := get[*simCQ](s, cq); ok {
		c.armed = true
	}
	return nil
}

func (s *sim) Events(ch handle) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Events"); err != nil {
		return 0, err
	}
	c, ok := get[*simCh](s, ch)
	if !ok {
		return 0, unix.EINVAL
	}
	n := c.n
	c.n = 0
	c.fd.clear()
	return n, nil
}

func (s *sim) Poll(cq handle, wc []workComp) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Poll"); err != nil {
		return 0, err
	}
	c, ok := get[*simCQ](s, cq)
	if !ok {
		return 0, unix.EINVAL
	}
	n := copy(wc, c.comps)
	c.comps = c.comps[:copy(c.comps, c.comps[n:])]
	return n, nil
}

// put is the adapter's new completion.
func (s *sim) put(c *simCQ, wc workComp) {
	if len(c.comps) >= c.size {
		s.wrong("a completion queue overflows")
	}
	c.comps = append(c.comps, wc)
	if c.armed {
		c.armed = false
		c.ch.n++
		c.ch.fd.set()
	}
}
