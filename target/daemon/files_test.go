package daemon

import (
	"net/netip"
	"testing"

	"github.com/sluice-storage/sluice/internal/rpcbind"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// A service on all addresses is found by callers of IPv4, whatever family its listener shows.
func TestWildcardListenersAreBoundForBothFamilies(t *testing.T) {
	b := rpcserver.NewBinder()
	port := func(prot uint32) uint32 {
		m := rpcbind.Mapping{Prog: b.ID(), Vers: rpcbind.VersPmap, Prot: prot}
		c := &rpcserver.Call{Peer: &rpcserver.Peer{}, Worker: true}
		c.Vers, c.Proc, c.Args = rpcbind.VersPmap, rpcbind.ProcGetport, rpcserver.Args(xdr.NewReader(m.Append(nil)))
		b.Serve(c)
		r := xdr.NewReader(c.Out)
		return r.Uint32()
	}
	set(b, b, "tcp", netip.MustParseAddrPort("[2001:db8::1]:2049"))
	if got := port(rpcbind.ProtoTCP); got != 0 {
		t.Errorf("IPv4 callers are sent to port %d of IPv6", got)
	}
	set(b, b, "tcp", netip.MustParseAddrPort("[::]:2049"))
	set(b, b, "udp", netip.MustParseAddrPort("[::ffff:192.0.2.1]:2050"))
	if tcp, udp := port(rpcbind.ProtoTCP), port(rpcbind.ProtoUDP); tcp != 2049 || udp != 2050 {
		t.Errorf("ports %d and %d", tcp, udp)
	}
}
