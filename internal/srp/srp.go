// Package srp is the wire format of the SCSI RDMA Protocol: the information units of T10's SRP, revision 16a, with what Linux adds to
// them (include/scsi/srp.h), which are logins in the private data of RDMA/CM and immediate data. All numbers are big endian.
//
// Parse functions take what a peer has sent and check all of its lengths. What they return refers to it. Put functions write into memory of the
// caller's that has room for the whole unit, and return its length. Nothing here allocates but errors.
package srp

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// Opcode is the type of an information unit, its first byte.
type Opcode uint8

// The information units. Bit 7 is set in those of targets, bit 6 in those that answer.
const (
	OpLoginReq Opcode = 0x00
	OpTskMgmt  Opcode = 0x01
	OpCmd      Opcode = 0x02
	OpILogout  Opcode = 0x03
	OpCredRsp  Opcode = 0x41
	OpAERRsp   Opcode = 0x42
	OpTLogout  Opcode = 0x80
	OpCredReq  Opcode = 0x81
	OpAERReq   Opcode = 0x82
	OpLoginRsp Opcode = 0xC0
	OpRsp      Opcode = 0xC1
	OpLoginRej Opcode = 0xC2
)

var opcodeNames = map[Opcode]string{
	OpLoginReq: "SRP_LOGIN_REQ", OpTskMgmt: "SRP_TSK_MGMT", OpCmd: "SRP_CMD", OpILogout: "SRP_I_LOGOUT", OpCredRsp: "SRP_CRED_RSP", OpAERRsp: "SRP_AER_RSP",
	OpTLogout: "SRP_T_LOGOUT", OpCredReq: "SRP_CRED_REQ", OpAERReq: "SRP_AER_REQ", OpLoginRsp: "SRP_LOGIN_RSP", OpRsp: "SRP_RSP", OpLoginRej: "SRP_LOGIN_REJ",
}

func (o Opcode) String() string {
	if n, ok := opcodeNames[o]; ok {
		return n
	}
	return fmt.Sprintf("information unit %02Xh", uint8(o))
}

// Lengths of information units in bytes, without what follows their fixed part.
const (
	LoginReqLen = 56 // as RDMA/CM carries it
	LoginRspLen = 52
	LoginRejLen = 32
	CmdLen      = 48
	TskMgmtLen  = 48
	RspLen      = 36
	AERReqLen   = 36
	ShortLen    = 16 // logouts, SRP_CRED_REQ, and answers to what a target asks
)

// ProtocolError is a rule that the peer has broken.
type ProtocolError struct {
	Unit   Opcode       // what was received
	Reason LogoutReason // what a target says of it in SRP_T_LOGOUT
	Detail string
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("srp: the initiator broke a rule of SRP (%s): %s", e.Unit, e.Detail)
}

func broken(unit Opcode, why LogoutReason, format string, a ...any) error {
	return &ProtocolError{unit, why, fmt.Sprintf(format, a...)}
}

// long checks that a unit is there in its full length.
func long(unit Opcode, b []byte, n int) error {
	if len(b) < n {
		return broken(unit, LogoutInvalidUnit, "%d bytes, where the unit has %d", len(b), n)
	}
	return nil
}

// Unit is the opcode of an information unit.
func Unit(b []byte) (Opcode, error) {
	if len(b) == 0 {
		return 0, broken(0, LogoutInvalidUnit, "a message without a byte")
	}
	return Opcode(b[0]), nil
}

// PortID is an initiator or target port identifier: the identifier extension and a GUID, eight bytes each. Linux shows a target's as id_ext
// and ioc_guid.
type PortID [16]byte

// prefix begins an initiator's name where people write it. An iSCSI name begins otherwise.
const prefix = "srp."

// Name is how configurations, logs and lists write an initiator port: "srp." and 32 hexadecimal digits.
func (p PortID) Name() string { return prefix + hex.EncodeToString(p[:]) }

// Ext and GUID are the halves of a PortID in hexadecimal digits.
func (p PortID) Ext() string { return hex.EncodeToString(p[:8]) }

// GUID is the second half; see Ext.
func (p PortID) GUID() string { return hex.EncodeToString(p[8:]) }

// IsName reports whether s is written as the name of an initiator port of SRP, rightly or not.
func IsName(s string) bool { return strings.HasPrefix(s, prefix) }

// ParseName reads what Name writes.
func ParseName(s string) (p PortID, err error) {
	digits, is := strings.CutPrefix(s, prefix)
	if n, herr := hex.Decode(p[:], []byte(digits)); !is || len(digits) != 2*len(p) || herr != nil || n != len(p) || digits != strings.ToLower(digits) {
		return PortID{}, fmt.Errorf("srp: the initiator port %q is not \"srp.\" and 32 hexadecimal digits in lower case: initiator_ext, and the second half of the port's GID 0", s)
	}
	return p, nil
}

// Memory is one memory descriptor: bytes of the initiator's that the target writes or reads by RDMA.
type Memory struct {
	VA  uint64
	Key uint32 // R_Key or STag
	Len uint32
}

// MemoryLen is the length of a descriptor in bytes.
const MemoryLen = 16

// ParseMemory reads a descriptor from the 16 bytes that b begins with.
func ParseMemory(b []byte) Memory {
	return Memory{VA: binary.BigEndian.Uint64(b), Key: binary.BigEndian.Uint32(b[8:]), Len: binary.BigEndian.Uint32(b[12:])}
}

// Put writes a descriptor.
func (m Memory) Put(b []byte) {
	binary.BigEndian.PutUint64(b, m.VA)
	binary.BigEndian.PutUint32(b[8:], m.Key)
	binary.BigEndian.PutUint32(b[12:], m.Len)
}

// short is the form of units that have an opcode, a tag and at most one number.
func putShort(b []byte, op Opcode, n uint32, tag uint64) int {
	b = b[:ShortLen]
	clear(b)
	b[0] = byte(op)
	binary.BigEndian.PutUint32(b[4:], n)
	binary.BigEndian.PutUint64(b[8:], tag)
	return ShortLen
}

func parseShort(b []byte, op Opcode) (n uint32, tag uint64, err error) {
	if err := long(op, b, ShortLen); err != nil {
		return 0, 0, err
	}
	if Opcode(b[0]) != op {
		return 0, 0, broken(Opcode(b[0]), LogoutInvalidUnit, "in place of %s", op)
	}
	return binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:]), nil
}
