package iscsi

import "encoding/binary"

// ISERHeaderLen is the length in bytes of the header before each iSCSI PDU in iSER-assisted mode (RFC 7145 section 9.2).
const ISERHeaderLen = 28

// ISERType is the opcode in the high nibble of the first byte of an iSER header.
type ISERType uint8

// iSER message types (RFC 7145 section 9.1).
const (
	ISERControl    ISERType = 1
	ISERHello      ISERType = 2
	ISERHelloReply ISERType = 3
)

const (
	iserWSV = 0x08
	iserRSV = 0x04
)

// ISERHeader is the header of a control-type PDU: which memory of the initiator a command moves data from and to.
type ISERHeader struct {
	WriteValid, ReadValid bool // WSV and RSV
	WriteSTag             uint32
	WriteBase             uint64 // where the data to be fetched begins; Linux counts unsolicited bytes into it
	ReadSTag              uint32
	ReadBase              uint64
}

// Put writes the 28 bytes.
func (h *ISERHeader) Put(b []byte) {
	_ = b[ISERHeaderLen-1]
	b[0] = byte(ISERControl)<<4 | flag(h.WriteValid, iserWSV) | flag(h.ReadValid, iserRSV)
	b[1], b[2], b[3] = 0, 0, 0
	binary.BigEndian.PutUint32(b[4:], h.WriteSTag)
	binary.BigEndian.PutUint64(b[8:], h.WriteBase)
	binary.BigEndian.PutUint32(b[16:], h.ReadSTag)
	binary.BigEndian.PutUint64(b[20:], h.ReadBase)
}

// Append appends the header to b.
func (h *ISERHeader) Append(b []byte) []byte {
	var a [ISERHeaderLen]byte
	h.Put(a[:])
	return append(b, a[:]...)
}

// Parse reads a header and says what kind of message it begins; the fields are set for ISERControl only.
func (h *ISERHeader) Parse(b []byte) (ISERType, error) {
	*h = ISERHeader{}
	if len(b) < ISERHeaderLen {
		return 0, &ProtocolError{RFC: 7145, Clause: "9.2", Reason: RejectProtocol, Detail: "a message shorter than an iSER header"}
	}
	switch t := ISERType(b[0] >> 4); t {
	case ISERHello, ISERHelloReply:
		return t, nil
	case ISERControl:
	default:
		return 0, &ProtocolError{RFC: 7145, Clause: "9.1", Reason: RejectProtocol, Detail: "an iSER message of a reserved type"}
	}
	h.WriteValid, h.ReadValid = b[0]&iserWSV != 0, b[0]&iserRSV != 0
	h.WriteSTag, h.WriteBase = binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])
	h.ReadSTag, h.ReadBase = binary.BigEndian.Uint32(b[16:]), binary.BigEndian.Uint64(b[20:])
	return ISERControl, nil
}

// Bits of the first of the four bytes of private data that both sides of an iSER connection exchange. RFC 7145 leaves
// them to the InfiniBand annex; Linux, LIO and libiscsi send them on every fabric.
const (
	CMNoZeroBased = 0x80 // zero-based virtual addresses are not used
	CMNoSendInv   = 0x40 // Send with Invalidate is not used
)

// CMPrivate returns the private data of a side that can, or cannot, take or send Send with Invalidate.
func CMPrivate(sendInv bool) []byte {
	return []byte{CMNoZeroBased | flag(!sendInv, CMNoSendInv), 0, 0, 0}
}

// CMSendInv reports whether a peer with this private data agrees to Send with Invalidate. Missing data means no. Where the
// fabric fills private data up with zeroes, a first byte of zero is missing data: all who send the header set CMNoZeroBased.
func CMSendInv(private []byte, padded bool) bool {
	return len(private) > 0 && private[0]&CMNoSendInv == 0 && !(padded && private[0] == 0)
}
