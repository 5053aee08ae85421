package rpcserver

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// Binder is the rpcbind program (RFC 1833), versions 2 to 4: it tells clients the ports of the other programs. It takes
// registrations from this process only; SET and UNSET of others are refused.
type Binder struct {
	mu   sync.Mutex
	list []binding
}

type binding struct {
	prog, vers uint32
	netid      string
	addr       netip.AddrPort
}

// NewBinder returns an rpcbind that knows itself.
func NewBinder() *Binder { return &Binder{} }

// Set registers all versions of p at addr for a netid: tcp, tcp6, udp, udp6, rdma or rdma6. An unspecified address means
// the one that the client asks.
func (b *Binder) Set(p Program, netid string, addr netip.AddrPort) {
	low, high := p.Versions()
	b.mu.Lock()
	defer b.mu.Unlock()
	for v := low; v <= high; v++ {
		b.list = slices.DeleteFunc(b.list, func(x binding) bool { return x.prog == p.ID() && x.vers == v && x.netid == netid })
		b.list = append(b.list, binding{prog: p.ID(), vers: v, netid: netid, addr: addr})
	}
}

// ID is the program number.
func (b *Binder) ID() uint32 { return rpcbind.Prog }

// Versions are 2 to 4.
func (b *Binder) Versions() (low, high uint32) { return rpcbind.VersPmap, rpcbind.Vers4 }

// Keeps is false.
func (b *Binder) Keeps(_, _ uint32) bool { return false }

// Classify leaves a call to who reads the connection: the list is short, and in memory.
func (b *Binder) Classify(*Call) Class { return Inline }

// Serve executes one call.
func (b *Binder) Serve(c *Call) Verdict {
	if c.Vers == rpcbind.VersPmap {
		return b.serve2(c)
	}
	return b.serve34(c)
}

func (b *Binder) serve2(c *Call) Verdict {
	switch c.Proc {
	case rpcbind.ProcSet, rpcbind.ProcUnset:
		c.Out = xdr.AppendBool(c.Out, false)
	case rpcbind.ProcGetport:
		var m rpcbind.Mapping
		if m.Parse(c.Args.reader()); c.Args.Err() != nil {
			return c.Garbage()
		}
		port := uint32(0)
		if x, ok := b.find(m.Prog, m.Vers, netidOf(m.Prot)); ok {
			port = uint32(x.addr.Port())
		}
		c.Out = xdr.AppendUint32(c.Out, port)
	case rpcbind.ProcDump:
		var l []rpcbind.Mapping
		for _, x := range b.all() {
			prot := uint32(rpcbind.ProtoTCP)
			switch x.netid {
			case "tcp":
			case "udp":
				prot = rpcbind.ProtoUDP
			default:
				continue // version 2 has no numbers for others
			}
			l = append(l, rpcbind.Mapping{Prog: x.prog, Vers: x.vers, Prot: prot, Port: uint32(x.addr.Port())})
		}
		c.Out = rpcbind.AppendDump2(c.Out, l)
	default:
		return c.NoProc() // CALLIT would make this server call others for strangers
	}
	return Done
}

func netidOf(prot uint32) string {
	if prot == rpcbind.ProtoUDP {
		return "udp"
	}
	return "tcp"
}

func (b *Binder) serve34(c *Call) Verdict {
	switch c.Proc {
	case rpcbind.ProcSet, rpcbind.ProcUnset:
		c.Out = xdr.AppendBool(c.Out, false)
	case rpcbind.ProcGetaddr, rpcbind.ProcGetversaddr:
		if c.Proc == rpcbind.ProcGetversaddr && c.Vers == rpcbind.Vers3 {
			return c.NoProc()
		}
		var m rpcbind.Binding
		if m.Parse(c.Args.reader()); c.Args.Err() != nil {
			return c.Garbage()
		}
		netid := m.Netid
		if netid == "" {
			netid = b.netidOfPeer(c.Peer)
		}
		s := ""
		if x, ok := b.find(m.Prog, m.Vers, netid); ok {
			s = rpcbind.Uaddr(x.seenBy(c.Peer))
		}
		c.Out = xdr.AppendString(c.Out, s)
	case rpcbind.ProcDump:
		var l []rpcbind.Binding
		for _, x := range b.all() {
			l = append(l, rpcbind.Binding{Prog: x.prog, Vers: x.vers, Netid: x.netid, Addr: rpcbind.Uaddr(x.seenBy(c.Peer)), Owner: "sluice"})
		}
		c.Out = rpcbind.AppendDump(c.Out, l)
	case rpcbind.ProcGetaddrlist:
		if c.Vers == rpcbind.Vers3 {
			return c.NoProc()
		}
		var m rpcbind.Binding
		if m.Parse(c.Args.reader()); c.Args.Err() != nil {
			return c.Garbage()
		}
		var l []rpcbind.Entry
		for _, x := range b.all() {
			if x.prog == m.Prog && x.vers == m.Vers {
				l = append(l, x.entry(c.Peer))
			}
		}
		c.Out = rpcbind.AppendEntries(c.Out, l)
	default:
		return c.NoProc()
	}
	return Done
}

func (x binding) entry(p *Peer) rpcbind.Entry {
	e := rpcbind.Entry{Addr: rpcbind.Uaddr(x.seenBy(p)), Netid: x.netid, Semantics: 3, Family: "inet", Proto: strings.TrimSuffix(x.netid, "6")}
	if strings.HasSuffix(x.netid, "6") {
		e.Family = "inet6"
	}
	if e.Proto == "udp" {
		e.Semantics = 1
	}
	return e
}

// seenBy is the address under which a peer reaches the service.
func (x binding) seenBy(p *Peer) netip.AddrPort {
	if !x.addr.Addr().IsValid() || x.addr.Addr().IsUnspecified() {
		a := netip.IPv4Unspecified()
		if strings.HasSuffix(x.netid, "6") {
			a = netip.IPv6Unspecified()
		}
		if l := p.Local.Addr().Unmap(); l.IsValid() && l.Is6() == a.Is6() {
			a = l
		}
		return netip.AddrPortFrom(a, x.addr.Port())
	}
	return x.addr
}

func (b *Binder) netidOfPeer(p *Peer) string {
	s := "tcp"
	if p.UDP {
		s = "udp"
	}
	if p.Addr.Addr().Is6() {
		s += "6"
	}
	return s
}

// find looks a program up; another version will do when the one asked for is not there, so that the program itself can
// tell its versions (RFC 1833 section 2.2.1).
func (b *Binder) find(prog, vers uint32, netid string) (binding, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var other binding
	found := false
	for _, x := range b.list {
		if x.prog == prog && x.netid == netid {
			if x.vers == vers {
				return x, true
			}
			other, found = x, true
		}
	}
	return other, found
}

func (b *Binder) all() []binding {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.list)
}
