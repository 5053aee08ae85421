// Package rpcbind is the wire form of the binding protocols: PMAP version 2 and rpcbind versions 3 and 4 (RFC 1833).
package rpcbind

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// Program, versions and port (RFC 1833 sections 2 and 3).
const (
	Prog     = 100000
	VersPmap = 2
	Vers3    = 3
	Vers4    = 4
	Port     = 111
)

// Procedures. The first five have one number in all versions; GETPORT is version 2's GETADDR.
const (
	ProcNull        = 0
	ProcSet         = 1
	ProcUnset       = 2
	ProcGetport     = 3
	ProcGetaddr     = 3
	ProcDump        = 4
	ProcCallit      = 5
	ProcGettime     = 6
	ProcUaddr2taddr = 7
	ProcTaddr2uaddr = 8
	ProcGetversaddr = 9
	ProcIndirect    = 10
	ProcGetaddrlist = 11
	ProcGetstat     = 12
)

// Protocols of version 2 mappings.
const (
	ProtoTCP = 6
	ProtoUDP = 17
)

const (
	maxString = 256  // netid, universal address, owner; RFC 1833 has no bound
	maxList   = 4096 // items of a DUMP that a client takes
)

// Mapping is version 2's mapping.
type Mapping struct{ Prog, Vers, Prot, Port uint32 }

// Append appends the mapping.
func (m Mapping) Append(b []byte) []byte {
	b = xdr.AppendUint32(xdr.AppendUint32(b, m.Prog), m.Vers)
	return xdr.AppendUint32(xdr.AppendUint32(b, m.Prot), m.Port)
}

// Parse takes a mapping from r.
func (m *Mapping) Parse(r *xdr.Reader) {
	m.Prog, m.Vers, m.Prot, m.Port = r.Uint32(), r.Uint32(), r.Uint32(), r.Uint32()
}

// Binding is versions 3 and 4's rpcb.
type Binding struct {
	Prog, Vers         uint32
	Netid, Addr, Owner string
}

// Append appends the rpcb.
func (m *Binding) Append(b []byte) []byte {
	b = xdr.AppendUint32(xdr.AppendUint32(b, m.Prog), m.Vers)
	return xdr.AppendString(xdr.AppendString(xdr.AppendString(b, m.Netid), m.Addr), m.Owner)
}

// Parse takes an rpcb from r.
func (m *Binding) Parse(r *xdr.Reader) {
	m.Prog, m.Vers = r.Uint32(), r.Uint32()
	m.Netid, m.Addr, m.Owner = r.String(maxString), r.String(maxString), r.String(maxString)
}

// ParseAddr takes the result of GETADDR, a universal address; "" is none.
func ParseAddr(r *xdr.Reader) string { return r.String(maxString) }

// AppendDump2 appends version 2's DUMP.
func AppendDump2(b []byte, l []Mapping) []byte {
	for _, m := range l {
		b = m.Append(xdr.AppendBool(b, true))
	}
	return xdr.AppendBool(b, false)
}

// ParseDump2 takes version 2's DUMP from r.
func ParseDump2(r *xdr.Reader) (l []Mapping) {
	for r.Bool() && len(l) < maxList {
		var m Mapping
		m.Parse(r)
		l = append(l, m)
	}
	return l
}

// AppendDump appends the DUMP of versions 3 and 4.
func AppendDump(b []byte, l []Binding) []byte {
	for i := range l {
		b = l[i].Append(xdr.AppendBool(b, true))
	}
	return xdr.AppendBool(b, false)
}

// ParseDump takes the DUMP of versions 3 and 4 from r.
func ParseDump(r *xdr.Reader) (l []Binding) {
	for r.Bool() && len(l) < maxList {
		var m Binding
		m.Parse(r)
		l = append(l, m)
	}
	return l
}

// Entry is version 4's rpcb_entry, an item of GETADDRLIST.
type Entry struct {
	Addr, Netid   string
	Semantics     uint32 // 1 connectionless, 2 connection-oriented, 3 with graceful close
	Family, Proto string // "inet" or "inet6"; "tcp", "udp" or "rdma"
}

// AppendEntries appends version 4's GETADDRLIST.
func AppendEntries(b []byte, l []Entry) []byte {
	for _, e := range l {
		b = xdr.AppendString(xdr.AppendString(xdr.AppendBool(b, true), e.Addr), e.Netid)
		b = xdr.AppendString(xdr.AppendString(xdr.AppendUint32(b, e.Semantics), e.Family), e.Proto)
	}
	return xdr.AppendBool(b, false)
}

// Uaddr is the universal address of ap (RFC 5665 section 5.2.3.3): the address, then the port's two bytes.
func Uaddr(ap netip.AddrPort) string {
	return fmt.Sprintf("%s.%d.%d", ap.Addr().Unmap(), ap.Port()>>8, ap.Port()&0xff)
}

// ParseUaddr reads a universal address.
func ParseUaddr(s string) (netip.AddrPort, error) {
	bad := func() (netip.AddrPort, error) {
		return netip.AddrPort{}, fmt.Errorf("rpcbind: %q is no universal address (RFC 5665 section 5.2.3.3)", s)
	}
	i := strings.LastIndexByte(s, '.')
	if i < 0 {
		return bad()
	}
	j := strings.LastIndexByte(s[:i], '.')
	if j < 0 {
		return bad()
	}
	hi, err1 := strconv.ParseUint(s[j+1:i], 10, 8)
	lo, err2 := strconv.ParseUint(s[i+1:], 10, 8)
	a, err3 := netip.ParseAddr(s[:j])
	if err1 != nil || err2 != nil || err3 != nil {
		return bad()
	}
	return netip.AddrPortFrom(a, uint16(hi<<8|lo)), nil
}
