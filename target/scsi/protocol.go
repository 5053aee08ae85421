package scsi

import "github.com/sluice-storage/sluice/internal/srp"

// Protocol identifiers (SPC-4 table 438).
const (
	protoSRP   = 4
	protoISCSI = 5
)

// SRPPort is an initiator or target port identifier of the SCSI RDMA Protocol: an identifier extension and a GUID, eight bytes each.
type SRPPort [16]byte

// Name is how an initiator port is written: "srp." and 32 hexadecimal digits. No iSCSI name begins like that.
func (p SRPPort) Name() string { return srp.PortID(p).Name() }

// SRPPorts are the ports of one I_T nexus.
type SRPPorts struct{ Initiator, Target SRPPort }

// protocol is the protocol identifier of the nexus's ports.
func (n *Nexus) protocol() byte {
	if n.opt.SRP != nil {
		return protoSRP
	}
	return protoISCSI
}

// srpTransportIDLen is the length of a TransportID of SRP (SPC-4 section 7.6.4.5).
const srpTransportIDLen = 24

// srpTransportID makes one of an initiator port's name; nil for an iSCSI name.
func srpTransportID(port string) []byte {
	p, err := srp.ParseName(port)
	if err != nil {
		return nil
	}
	b := make([]byte, srpTransportIDLen)
	b[0] = protoSRP
	copy(b[8:], p[:])
	return b
}

// protocolOf is the protocol identifier of an initiator port, by its name.
func protocolOf(port string) byte {
	if srp.IsName(port) {
		return protoSRP
	}
	return protoISCSI
}

// parseSRPTransportID reads one from the beginning of b; false for another protocol's.
func parseSRPTransportID(b []byte) (name string, is bool) {
	if len(b) < srpTransportIDLen || b[0] != protoSRP {
		return "", false
	}
	return srp.PortID(b[8:srpTransportIDLen]).Name(), true
}
