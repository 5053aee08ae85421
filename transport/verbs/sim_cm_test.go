package verbs

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// simFD is a descriptor that is readable or is not.
type simFD struct{ fd int }

func newSimFD() (*simFD, error) {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	return &simFD{fd}, err
}

func (f *simFD) set() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(f.fd, one[:])
}

func (f *simFD) clear() {
	var b [8]byte
	_, _ = unix.Read(f.fd, b[:])
}

func (f *simFD) close() { _ = unix.Close(f.fd) }

type simEvents struct {
	fd  *simFD
	evs []cmEvent
}

type simID struct {
	h             handle
	ch            *simEvents
	nic           *simNIC
	local, remote netip.AddrPort
	qp            *simQP
	peer          *simID
	listens       bool
	asks          bool // a request that has no answer
	up            bool
	in, out       uint8 // what the request said
	ack           uint8 // the acknowledgement timeout, 0 where none was set
	routed        bool
}

func (s *sim) say(i *simID, e cmEvent) {
	e.ID = i.h
	i.ch.evs = append(i.ch.evs, e)
	i.ch.fd.set()
}

func (s *sim) CreateEventChannel() (handle, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("CreateEventChannel"); err != nil {
		return 0, 0, err
	}
	fd, err := newSimFD()
	if err != nil {
		return 0, 0, err
	}
	return s.make(&simEvents{fd: fd}), fd.fd, nil
}

func (s *sim) DestroyEventChannel(ch handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := get[*simEvents](s, ch); ok {
		for _, e := range c.evs {
			if e.Kind == cmConnectRequest {
				delete(s.obj, e.ID) // the library's list has it still
			}
		}
		c.fd.close()
		s.gone("DestroyEventChannel", ch)
	}
}

func (s *sim) CMEvent(ch handle) (cmEvent, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("CMEvent"); err != nil {
		return cmEvent{}, false, err
	}
	c, ok := get[*simEvents](s, ch)
	if !ok {
		return cmEvent{}, false, unix.EINVAL
	}
	if len(c.evs) == 0 {
		c.fd.clear()
		return cmEvent{}, false, nil
	}
	e := c.evs[0]
	c.evs = c.evs[1:]
	return e, true, nil
}

func (s *sim) CreateID(ch handle) (handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("CreateID"); err != nil {
		return 0, err
	}
	c, ok := get[*simEvents](s, ch)
	if !ok {
		return 0, unix.EINVAL
	}
	i := &simID{ch: c}
	i.h = s.make(i, ch)
	return i.h, nil
}

func (s *sim) DestroyID(id handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := get[*simID](s, id); ok {
		if i.qp != nil {
			s.wrong("DestroyID before its queue pair")
		}
		s.leave(i)
		if i.listens {
			delete(s.ports, i.local)
		}
		left := i.ch.evs[:0]
		for _, e := range i.ch.evs {
			if e.Kind == cmConnectRequest && e.Listener == id {
				if p, ok := s.obj[e.ID].(*simID); ok { // never taken: the library ends it
					s.leave(p)
					s.gone("DestroyID", e.ID, s.parent(p.ch))
				}
			} else if e.ID != id {
				left = append(left, e)
			}
		}
		i.ch.evs = left
		s.gone("DestroyID", id, s.parent(i.ch))
	}
	return s.enter("DestroyID")
}

// leave tells the other side that i is no more.
func (s *sim) leave(i *simID) {
	p := i.peer
	if p == nil {
		return
	}
	i.peer, p.peer = nil, nil
	if i.nic.down || p.nic.down { // the message is lost
		i.up = false
		if i.nic.down && !i.nic.way && i.nic.kind.driver == "rdma_rxe" {
			i.nic.deaf = true // rxe_requester finds no route: rxe_qp_error
		}
		return
	}
	switch {
	case i.asks:
		s.say(p, cmEvent{Kind: cmRejected, Status: cmConsumer, Text: "rejected"})
	case p.asks:
		s.say(p, cmEvent{Kind: cmConnectError, Status: -int(unix.ECONNRESET), Text: "connect error"})
	case i.up:
		s.say(p, cmEvent{Kind: cmDisconnected, Text: "disconnected"})
	}
	i.up, p.up = false, false
}

func (s *sim) MoveID(id, ch handle) error { return unix.ENOSYS }

func (s *sim) BindAddr(id handle, a netip.AddrPort) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("BindAddr"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok {
		return unix.EINVAL
	}
	if !a.Addr().IsUnspecified() {
		if i.nic = s.owner(a.Addr()); i.nic == nil {
			return unix.ENODEV
		}
	}
	if a.Port() == 0 {
		s.port++
		a = netip.AddrPortFrom(a.Addr(), s.port)
	}
	i.local = a
	return nil
}

func (s *sim) owner(a netip.Addr) *simNIC {
	for _, n := range s.nics {
		for _, x := range n.addrs {
			if x == a && !n.gone {
				return n
			}
		}
	}
	return nil
}

func (s *sim) SetToS(id handle, tos uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.enter("SetToS")
}

func (s *sim) SetAckTimeout(id handle, power uint8) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("SetAckTimeout"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok || power > 31 {
		return unix.EINVAL
	}
	if i.routed || i.up {
		s.wrong("SetAckTimeout when the peer's adapter has been told, or the queue pair is ready")
	}
	i.ack = power
	return nil
}

func (s *sim) ResolveAddr(id handle, src, dst netip.AddrPort, timeoutMS int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("ResolveAddr"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok {
		return unix.EINVAL
	}
	// The route goes over the other adapter, where there are two.
	own := s.owner(dst.Addr())
	out := own
	for _, n := range s.nics {
		if !n.gone && n != own && own != nil {
			out = n
		}
	}
	if out != nil && (!out.down || out.way) {
		for _, a := range out.addrs {
			if a.Is4() == dst.Addr().Is4() {
				s.port++
				i.nic, i.local, i.remote = out, netip.AddrPortFrom(a, s.port), dst
			}
		}
	}
	if i.nic == nil {
		no := unix.EHOSTUNREACH
		if own != nil {
			no = unix.ENODEV
		}
		s.say(i, cmEvent{Kind: cmAddrError, Status: -int(no), Text: "address error"})
		return nil
	}
	s.say(i, cmEvent{Kind: cmAddrResolved, Text: "address resolved"})
	return nil
}

func (s *sim) ResolveRoute(id handle, timeoutMS int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("ResolveRoute"); err != nil {
		return err
	}
	if i, ok := get[*simID](s, id); ok {
		i.routed = true
		s.say(i, cmEvent{Kind: cmRouteResolved, Text: "route resolved"})
	}
	return nil
}

func (s *sim) Listen(id handle, backlog int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Listen"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok {
		return unix.EINVAL
	}
	if s.ports[i.local] != nil {
		return unix.EADDRINUSE
	}
	i.listens = true
	s.ports[i.local] = i
	return nil
}

// padded is what private data becomes on its way.
func padded(n *simNIC, b []byte, size int) []byte {
	if n.kind.fabric == kindIWARP {
		return append([]byte(nil), b...)
	}
	out := make([]byte, size)
	copy(out, b)
	return out
}

func (s *sim) Connect(id handle, p connParam) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Connect"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok || i.qp == nil {
		return unix.EINVAL
	}
	far := s.owner(i.remote.Addr())
	if far == nil || far.down || i.nic.down || far.deaf || i.nic.deaf {
		s.say(i, cmEvent{Kind: cmUnreachable, Status: -int(unix.ETIMEDOUT), Text: "unreachable"})
		return nil
	}
	l := s.ports[i.remote]
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		if l == nil {
			l = s.ports[netip.AddrPortFrom(any, i.remote.Port())]
		}
	}
	if l == nil {
		status := cmNoService
		if i.nic.kind.fabric == kindIWARP {
			status = -int(unix.ECONNREFUSED)
		}
		s.say(i, cmEvent{Kind: cmRejected, Status: status, Text: "rejected"})
		return nil
	}
	r := &simID{ch: l.ch, nic: far, local: i.remote, remote: i.local, peer: i, asks: true, in: p.ResponderResources, out: p.InitiatorDepth}
	r.h = s.make(r, s.parent(l.ch))
	i.peer = r
	s.say(r, cmEvent{Kind: cmConnectRequest, Listener: l.h, Text: "connect request", Private: padded(i.nic, p.Private, 56),
		ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources})
	return nil
}

func (s *sim) Accept(id handle, p connParam) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Accept"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok || i.qp == nil || !i.asks {
		return unix.EINVAL
	}
	if i.peer == nil || i.peer.qp == nil {
		return unix.EINVAL
	}
	i.asks = false
	if i.nic.kind.outOf { // siw_accept raises what it serves to what the peer asks for (relaxed_ird_negotiation)
		p.ResponderResources = max(p.ResponderResources, i.out)
	}
	o := i.peer
	i.up, o.up = true, true
	s.acks = [2]uint8{o.ack, i.ack}
	a, b := o.qp, i.qp
	if !a.err && !b.err {
		a.peer, b.peer, a.rts, b.rts = b, a, true, true
	}
	a.reads, b.reads = min(int(i.out), int(p.ResponderResources)), min(int(p.InitiatorDepth), int(i.in))
	reply := cmEvent{Kind: cmEstablished, Text: "established", Private: padded(i.nic, p.Private, 196),
		ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources}
	if i.nic.kind.outOf { // siw_proc_mpareply keeps the peer's ORD as its ird, and that goes up as the initiator depth
		reply.ResponderResources, reply.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
	}
	s.say(o, reply)
	s.say(i, cmEvent{Kind: cmEstablished, Text: "established"})
	return nil
}

func (s *sim) Reject(id handle, private []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Reject"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok || !i.asks || i.peer == nil {
		return unix.EINVAL
	}
	status := cmConsumer
	if i.nic.kind.fabric == kindIWARP {
		status = -int(unix.ECONNREFUSED)
	}
	s.say(i.peer, cmEvent{Kind: cmRejected, Status: status, Text: "rejected", Private: padded(i.nic, private, 148)})
	i.peer.peer, i.peer, i.asks = nil, nil, false
	return nil
}

func (s *sim) Disconnect(id handle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Disconnect"); err != nil {
		return err
	}
	i, ok := get[*simID](s, id)
	if !ok || i.qp == nil {
		return unix.EINVAL
	}
	s.stop(i.qp)
	if !i.up {
		return unix.EINVAL
	}
	s.leave(i)
	s.say(i, cmEvent{Kind: cmDisconnected, Text: "disconnected"})
	return nil
}

func (s *sim) Where(id handle) (where, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.enter("Where"); err != nil {
		return where{}, err
	}
	i, ok := get[*simID](s, id)
	if !ok {
		return where{}, unix.EINVAL
	}
	w := where{Local: i.local, Remote: i.remote, GID: i.local.Addr().As16()}
	if i.nic != nil {
		w.Dev, w.Port, w.MTU = i.nic.dev, 1, 4096
	}
	return w, nil
}

// lose makes a port go down, and come back.
func (s *sim) lose(n *simNIC, down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.down, n.late = down, false
	if down {
		n.say(asyncEvent{Kind: asyncPortError, Port: 1, Text: "port error"})
	} else {
		n.say(asyncEvent{Kind: asyncPortActive, Port: 1, Text: "port active"})
	}
}

// unplug takes an adapter away.
func (s *sim) unplug(n *simNIC) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n.gone = true
	n.say(asyncEvent{Kind: asyncDeviceFatal, Text: "local catastrophic error"})
	for _, o := range s.obj {
		if i, ok := o.(*simID); ok && i.nic == n {
			if i.qp != nil {
				s.stop(i.qp)
			}
			if i.listens {
				delete(s.ports, i.local)
				i.listens = false
			}
			s.say(i, cmEvent{Kind: cmDeviceRemoval, Text: "device removal"})
		}
	}
}
