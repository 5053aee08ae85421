package iwarp

import "encoding/binary"

// Opcodes of RDMAP, RFC 5040 section 4.1.
const (
	opWrite     = 0
	opReadReq   = 1
	opReadResp  = 2
	opSend      = 3
	opSendInv   = 4
	opSendSE    = 5
	opSendSEInv = 6
	opTerminate = 7
)

// Queue numbers of untagged messages, RFC 5040 section 4.2.
const (
	qnSend      = 0
	qnRead      = 1
	qnTerminate = 2
)

// The control field: DDP's T and L, DDP version, RDMAP version and opcode (RFC 5041 section 4.1, RFC 5040 section 4.1).
const (
	ctrlTagged  = 0x8000
	ctrlLast    = 0x4000
	ctrlDDPMask = 0x0300
	ctrlDDPv1   = 0x0100
	ctrlRDMask  = 0x00c0
	ctrlRDv1    = 0x0040
	ctrlOpMask  = 0x000f
	ctrlV1      = ctrlDDPv1 | ctrlRDv1
)

// Lengths, the two bytes of the ULPDU length included.
const (
	taggedLen   = 16
	untaggedLen = 20
	readReqLen  = 28 // of the RDMAP header that follows the untagged one
	crcLen      = 4
)

// fpduPad is the number of zero bytes that round an FPDU to a multiple of 4 (RFC 5044 section 4.1).
func fpduPad(ulpdu int) int { return -(2 + ulpdu) & 3 }

// fpduLen is the length of the FPDU around a ULPDU, without markers.
func fpduLen(ulpdu int) int { return 2 + ulpdu + fpduPad(ulpdu) + crcLen }

func putTagged(b []byte, payload int, ctrl uint16, stag uint32, to uint64) {
	_ = b[taggedLen-1]
	binary.BigEndian.PutUint16(b, uint16(taggedLen-2+payload))
	binary.BigEndian.PutUint16(b[2:], ctrl)
	binary.BigEndian.PutUint32(b[4:], stag)
	binary.BigEndian.PutUint64(b[8:], to)
}

func putUntagged(b []byte, payload int, ctrl uint16, inv, qn, msn, mo uint32) {
	_ = b[untaggedLen-1]
	binary.BigEndian.PutUint16(b, uint16(untaggedLen-2+payload))
	binary.BigEndian.PutUint16(b[2:], ctrl)
	binary.BigEndian.PutUint32(b[4:], inv)
	binary.BigEndian.PutUint32(b[8:], qn)
	binary.BigEndian.PutUint32(b[12:], msn)
	binary.BigEndian.PutUint32(b[16:], mo)
}

// readReq is the RDMAP header of an RDMA Read Request, RFC 5040 section 4.4.
type readReq struct {
	SinkSTag uint32
	SinkTO   uint64
	Size     uint32
	SrcSTag  uint32
	SrcTO    uint64
}

func (r *readReq) put(b []byte) {
	_ = b[readReqLen-1]
	binary.BigEndian.PutUint32(b, r.SinkSTag)
	binary.BigEndian.PutUint64(b[4:], r.SinkTO)
	binary.BigEndian.PutUint32(b[12:], r.Size)
	binary.BigEndian.PutUint32(b[16:], r.SrcSTag)
	binary.BigEndian.PutUint64(b[20:], r.SrcTO)
}

// parse reads readReqLen bytes.
func (r *readReq) parse(b []byte) {
	_ = b[readReqLen-1]
	r.SinkSTag = binary.BigEndian.Uint32(b)
	r.SinkTO = binary.BigEndian.Uint64(b[4:])
	r.Size = binary.BigEndian.Uint32(b[12:])
	r.SrcSTag = binary.BigEndian.Uint32(b[16:])
	r.SrcTO = binary.BigEndian.Uint64(b[20:])
}

// ddpHeader is a parsed DDP and RDMAP header of either kind.
type ddpHeader struct {
	ulpdu  int
	ctrl   uint16
	op     uint8
	tagged bool
	last   bool
	stag   uint32 // tagged: the sink; Send with Invalidate: the STag to end
	to     uint64 // tagged
	qn     uint32
	msn    uint32
	mo     uint32
}

// headerLen is how many bytes, the length field included, the header takes whose first four bytes b holds.
func headerLen(b []byte) int {
	if b[2]&(ctrlTagged>>8) != 0 {
		return taggedLen
	}
	return untaggedLen
}

// parse reads headerLen bytes. It checks nothing: the caller does, in the order the layers stand.
func (h *ddpHeader) parse(b []byte) {
	ctrl := binary.BigEndian.Uint16(b[2:])
	*h = ddpHeader{
		ulpdu: int(binary.BigEndian.Uint16(b)), ctrl: ctrl, op: uint8(ctrl & ctrlOpMask),
		tagged: ctrl&ctrlTagged != 0, last: ctrl&ctrlLast != 0, stag: binary.BigEndian.Uint32(b[4:]),
	}
	if h.tagged {
		h.to = binary.BigEndian.Uint64(b[8:])
		return
	}
	h.qn = binary.BigEndian.Uint32(b[8:])
	h.msn = binary.BigEndian.Uint32(b[12:])
	h.mo = binary.BigEndian.Uint32(b[16:])
}
