// Package iscsi is what both ends of an iSCSI connection share: the layouts of RFC 7143 section 11 and of the iSER
// header of RFC 7145 section 9.2, the text keys with their negotiation rules, CHAP, digests, names and serial numbers.
//
// It holds no socket and starts no goroutine. A header is a byte slice with accessors, so that it is read where it was
// received; the struct of each PDU writes one (Put, Append) and reads one back (Parse). Nothing here panics on what a
// peer sent, provided a BHS has its 48 bytes.
package iscsi

import "encoding/binary"

// BHSLen is the length of the Basic Header Segment in bytes (RFC 7143 section 11.2.1).
const BHSLen = 48

// Reserved is the value of a task tag or transfer tag that names nothing (RFC 7143 section 11.2.1.8).
const Reserved uint32 = 0xffffffff

// Opcode is the kind of a PDU, the low six bits of its first byte (RFC 7143 section 11.2.1.2).
type Opcode uint8

// Initiator opcodes.
const (
	OpNopOut       Opcode = 0x00
	OpSCSICommand  Opcode = 0x01
	OpTaskRequest  Opcode = 0x02
	OpLoginRequest Opcode = 0x03
	OpTextRequest  Opcode = 0x04
	OpDataOut      Opcode = 0x05
	OpLogoutReq    Opcode = 0x06
	OpSNACK        Opcode = 0x10
)

// Target opcodes.
const (
	OpNopIn         Opcode = 0x20
	OpSCSIResponse  Opcode = 0x21
	OpTaskResponse  Opcode = 0x22
	OpLoginResponse Opcode = 0x23
	OpTextResponse  Opcode = 0x24
	OpDataIn        Opcode = 0x25
	OpLogoutResp    Opcode = 0x26
	OpR2T           Opcode = 0x31
	OpAsync         Opcode = 0x32
	OpReject        Opcode = 0x3f
)

var opcodeNames = map[Opcode]string{
	OpNopOut: "NOP-Out", OpSCSICommand: "SCSI Command", OpTaskRequest: "Task Management Function Request",
	OpLoginRequest: "Login Request", OpTextRequest: "Text Request", OpDataOut: "SCSI Data-Out",
	OpLogoutReq: "Logout Request", OpSNACK: "SNACK Request", OpNopIn: "NOP-In", OpSCSIResponse: "SCSI Response",
	OpTaskResponse: "Task Management Function Response", OpLoginResponse: "Login Response",
	OpTextResponse: "Text Response", OpDataIn: "SCSI Data-In", OpLogoutResp: "Logout Response",
	OpR2T: "Ready To Transfer", OpAsync: "Asynchronous Message", OpReject: "Reject",
}

func (o Opcode) String() string {
	if s, ok := opcodeNames[o]; ok {
		return s
	}
	return "opcode 0x" + string("0123456789abcdef"[o>>4]) + string("0123456789abcdef"[o&15])
}

// Flag bits of byte 0 and byte 1.
const (
	FlagImmediate = 0x40 // byte 0: outside the CmdSN order (section 11.2.1.1)
	FlagFinal     = 0x80 // byte 1: F, and T (transit) of logins
	FlagContinue  = 0x40 // byte 1: C of text and login
	FlagRead      = 0x40 // byte 1 of a SCSI Command
	FlagWrite     = 0x20 // byte 1 of a SCSI Command
	FlagAck       = 0x40 // byte 1 of Data-In: A
	FlagStatus    = 0x01 // byte 1 of Data-In: S
	FlagUnderflow = 0x02 // byte 1 of SCSI Response and of Data-In with status: U
	FlagOverflow  = 0x04 // O
	FlagBidiUnder = 0x08 // u
	FlagBidiOver  = 0x10 // o
)

// BHS is a received or built header of at least 48 bytes; accessors name what the PDUs of that opcode keep there.
type BHS []byte

// Opcode is the kind of PDU.
func (b BHS) Opcode() Opcode { return Opcode(b[0] & 0x3f) }

// Immediate is the I bit of a request.
func (b BHS) Immediate() bool { return b[0]&FlagImmediate != 0 }

// Flags is byte 1.
func (b BHS) Flags() uint8 { return b[1] }

// Final is the F bit, the T bit of a login.
func (b BHS) Final() bool { return b[1]&FlagFinal != 0 }

// Continue is the C bit of a text or login PDU.
func (b BHS) Continue() bool { return b[1]&FlagContinue != 0 }

// AHSLen is TotalAHSLength in bytes.
func (b BHS) AHSLen() int { return int(b[4]) * 4 }

// SetAHSLen sets TotalAHSLength from a number of bytes that is a multiple of 4 up to 1020.
func (b BHS) SetAHSLen(n int) { b[4] = byte(n / 4) }

// DataLen is DataSegmentLength in bytes, padding not counted.
func (b BHS) DataLen() int { return int(b[5])<<16 | int(b[6])<<8 | int(b[7]) }

// SetDataLen sets DataSegmentLength, below 1<<24.
func (b BHS) SetDataLen(n int) { b[5], b[6], b[7] = byte(n>>16), byte(n>>8), byte(n) }

// LUN is the eight bytes of the LUN field, big endian (RFC 7143 section 11.2.1.7).
func (b BHS) LUN() uint64 { return binary.BigEndian.Uint64(b[8:]) }

// ITT is the Initiator Task Tag.
func (b BHS) ITT() uint32 { return binary.BigEndian.Uint32(b[16:]) }

// TTT is the Target Transfer Tag of the PDUs that have one, the Referenced Task Tag of a task management request, the
// SNACK Tag of a response.
func (b BHS) TTT() uint32 { return binary.BigEndian.Uint32(b[20:]) }

// CmdSN is the command's number in requests that carry one.
func (b BHS) CmdSN() uint32 { return binary.BigEndian.Uint32(b[24:]) }

// ExpStatSN is in every request.
func (b BHS) ExpStatSN() uint32 { return binary.BigEndian.Uint32(b[28:]) }

// StatSN is in every response but a Data-In without status, where it means nothing.
func (b BHS) StatSN() uint32 { return binary.BigEndian.Uint32(b[24:]) }

// ExpCmdSN is in every response.
func (b BHS) ExpCmdSN() uint32 { return binary.BigEndian.Uint32(b[28:]) }

// MaxCmdSN is in every response.
func (b BHS) MaxCmdSN() uint32 { return binary.BigEndian.Uint32(b[32:]) }

// SetStatSN writes StatSN of a response that was built before its number was known.
func (b BHS) SetStatSN(v uint32) { binary.BigEndian.PutUint32(b[24:], v) }

// SetExpCmdSN writes ExpCmdSN of a response.
func (b BHS) SetExpCmdSN(v uint32) { binary.BigEndian.PutUint32(b[28:], v) }

// SetMaxCmdSN writes MaxCmdSN of a response.
func (b BHS) SetMaxCmdSN(v uint32) { binary.BigEndian.PutUint32(b[32:], v) }

// EDTL is the Expected Data Transfer Length of a SCSI Command, in bytes.
func (b BHS) EDTL() uint32 { return binary.BigEndian.Uint32(b[20:]) }

// CDB is the first 16 bytes of the CDB of a SCSI Command, in place.
func (b BHS) CDB() []byte { return b[32:48:48] }

// DataSN is the number of a Data-In or Data-Out PDU, R2TSN of an R2T.
func (b BHS) DataSN() uint32 { return binary.BigEndian.Uint32(b[36:]) }

// Offset is the Buffer Offset of Data-In, Data-Out and R2T, in bytes.
func (b BHS) Offset() uint32 { return binary.BigEndian.Uint32(b[40:]) }

// Residual is the Residual Count of a SCSI Response or a Data-In with status, Desired Data Transfer Length of an R2T.
func (b BHS) Residual() uint32 { return binary.BigEndian.Uint32(b[44:]) }

// Pad is the number of bytes that follow n bytes up to a multiple of four (RFC 7143 section 11.1).
func Pad(n int) int { return -n & 3 }

func (b BHS) put32(off int, v uint32) { binary.BigEndian.PutUint32(b[off:], v) }

func (b BHS) putLUN(v uint64) { binary.BigEndian.PutUint64(b[8:], v) }

func (b BHS) start(op Opcode, flags uint8, dataLen int) {
	clear(b[:BHSLen])
	b[0], b[1] = byte(op), flags
	b.SetDataLen(dataLen)
}

func (b BHS) startRequest(op Opcode, immediate bool, flags uint8, dataLen int) {
	b.start(op, flags, dataLen)
	if immediate {
		b[0] |= FlagImmediate
	}
}

func flag(on bool, bit uint8) uint8 {
	if on {
		return bit
	}
	return 0
}
