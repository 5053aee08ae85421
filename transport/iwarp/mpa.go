package iwarp

import (
	"encoding/binary"
	"fmt"
)

// MPA frame constants, RFC 5044 section 7.1.1 and RFC 6581 section 8.
const (
	mpaKeyReq = "MPA ID Req Frame"
	mpaKeyRep = "MPA ID Rep Frame"
	mpaHdrLen = 20

	mpaMarkers  = 0x80
	mpaCRC      = 0x40
	mpaReject   = 0x20
	mpaEnhanced = 0x10
	mpaGSO      = 0x08 // siw's private hint: FPDUs may be larger than the MSS
)

// rtr is a set of ready-to-receive types (RFC 6581 section 9.2).
type rtr uint8

const (
	rtrSend rtr = 1 << iota
	rtrWrite
	rtrRead
)

// mpaFrame is an MPA Request or Reply Frame.
type mpaFrame struct {
	Reply    bool
	Markers  bool
	CRC      bool
	Reject   bool
	Enhanced bool // the next four fields are there
	GSO      bool
	Revision uint8
	P2P      bool
	RTR      rtr
	IRD, ORD uint16 // 14 bits each
	Private  []byte // of the upper protocol
}

// parseMPAHeader reads the 20 fixed bytes; the Private field of f stays empty. It returns how many bytes of private
// data follow, the enhanced 4 included.
func parseMPAHeader(b []byte, reply bool, f *mpaFrame) (pdLen int, err error) {
	if len(b) < mpaHdrLen {
		return 0, fmt.Errorf("iwarp: MPA frame of %d bytes, want %d at least", len(b), mpaHdrLen)
	}
	key := mpaKeyReq
	if reply {
		key = mpaKeyRep
	}
	if string(b[:16]) != key {
		return 0, fmt.Errorf("iwarp: the peer's first bytes are %q, not an MPA frame (RFC 5044 section 7.1.1)", b[:16])
	}
	fl := b[16]
	*f = mpaFrame{
		Reply: reply, Markers: fl&mpaMarkers != 0, CRC: fl&mpaCRC != 0, Reject: fl&mpaReject != 0,
		GSO: fl&mpaGSO != 0, Revision: b[17],
	}
	if f.Revision < 1 || f.Revision > 2 {
		return 0, fmt.Errorf("iwarp: the peer speaks MPA revision %d, we speak 1 and 2 (RFC 6581 section 8)", f.Revision)
	}
	// RFC 6581 section 8: the bit means something from revision 2 on only.
	f.Enhanced = f.Revision == 2 && fl&mpaEnhanced != 0
	pdLen = int(binary.BigEndian.Uint16(b[18:]))
	if pdLen > maxPrivate+4 {
		return 0, fmt.Errorf("iwarp: %d bytes of MPA private data, at most 512 are allowed (RFC 5044 section 7.1.1)", pdLen)
	}
	if f.Enhanced && pdLen < 4 {
		return 0, fmt.Errorf("iwarp: enhanced MPA frame with %d bytes of private data, at least 4 needed (RFC 6581 section 9)", pdLen)
	}
	return pdLen, nil
}

// parsePrivate reads the private data, enhanced part first, as long as parseMPAHeader said. f.Private aliases b.
func (f *mpaFrame) parsePrivate(b []byte) {
	if f.Enhanced {
		ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
		f.IRD, f.ORD = ird&maxReads14, ord&maxReads14
		// RFC 6581 section 9.2: without A the other control flags are ignored.
		if f.P2P = ird&0x8000 != 0; f.P2P {
			if ird&0x4000 != 0 {
				f.RTR |= rtrSend
			}
			if ord&0x8000 != 0 {
				f.RTR |= rtrWrite
			}
			if ord&0x4000 != 0 {
				f.RTR |= rtrRead
			}
		}
		b = b[4:]
	}
	f.Private = b
}

// append encodes the frame.
func (f *mpaFrame) append(b []byte) []byte {
	key := mpaKeyReq
	if f.Reply {
		key = mpaKeyRep
	}
	var fl byte
	for _, x := range [...]struct {
		on  bool
		bit byte
	}{{f.Markers, mpaMarkers}, {f.CRC, mpaCRC}, {f.Reject, mpaReject}, {f.Enhanced, mpaEnhanced}, {f.GSO, mpaGSO}} {
		if x.on {
			fl |= x.bit
		}
	}
	pd := len(f.Private)
	if f.Enhanced {
		pd += 4
	}
	b = append(append(b, key...), fl, f.Revision)
	b = binary.BigEndian.AppendUint16(b, uint16(pd))
	if f.Enhanced {
		ird, ord := f.IRD&maxReads14, f.ORD&maxReads14
		if f.P2P {
			ird |= 0x8000
			if f.RTR&rtrSend != 0 {
				ird |= 0x4000
			}
			if f.RTR&rtrWrite != 0 {
				ord |= 0x8000
			}
			if f.RTR&rtrRead != 0 {
				ord |= 0x4000
			}
		}
		b = binary.BigEndian.AppendUint16(b, ird)
		b = binary.BigEndian.AppendUint16(b, ord)
	}
	return append(b, f.Private...)
}

// IsMPARequest tells whether a stream that begins with prefix is an MPA connection request: no, yes, or too short to
// say (ok false). One byte tells an iSCSI login from it; 16 are certain.
func IsMPARequest(prefix []byte) (yes, ok bool) {
	n := min(len(prefix), len(mpaKeyReq))
	if string(prefix[:n]) != mpaKeyReq[:n] {
		return false, true
	}
	return true, n == len(mpaKeyReq)
}
