package srp

import (
	"encoding/binary"
	"fmt"
)

// Formats are the kinds of buffer descriptors of a login, REQUIRED and SUPPORTED BUFFER FORMATS.
type Formats uint16

// Buffer formats.
const (
	FormatDirect   Formats = 1 << 1
	FormatIndirect Formats = 1 << 2
)

// Flags of a login request. The lowest two bits are the multichannel action.
const (
	MultiSingle  uint8 = 0x00 // ends the other channels of the I_T nexus
	MultiMulti   uint8 = 0x01 // joins them
	ImmedRequest uint8 = 0x80 // Linux: immediate data is wanted

	multiMask uint8 = 0x03
)

// Flags of a login response. The lowest two bits are what became of the other channels of the I_T nexus.
const (
	ResultNone   uint8 = 0x00 // there were none
	ResultEnded  uint8 = 0x01
	ResultKept   uint8 = 0x02
	ImmedSupport uint8 = 0x80 // Linux: immediate data may be sent
)

// LoginReq is SRP_LOGIN_REQ as the private data of an RDMA/CM request bears it: Linux leaves reserved bytes out, because RDMA/CM has room for
// 56 over InfiniBand.
type LoginReq struct {
	Tag       uint64
	Formats   Formats
	Flags     uint8
	MaxITUnit uint32 // REQUESTED MAXIMUM INITIATOR TO TARGET IU LENGTH, bytes
	Initiator PortID
	Target    PortID
	ImmOffset uint16 // where immediate data begins in an SRP_CMD, bytes
}

// Multi reports whether the channel joins the others of its I_T nexus.
func (l *LoginReq) Multi() bool { return l.Flags&multiMask == MultiMulti }

// Immediate reports whether immediate data is asked for.
func (l *LoginReq) Immediate() bool { return l.Flags&ImmedRequest != 0 }

// ParseLoginReq reads the private data of a connection request, which may have zeroes behind it.
func ParseLoginReq(b []byte) (l LoginReq, err error) {
	if err := long(OpLoginReq, b, LoginReqLen); err != nil {
		return l, err
	}
	if Opcode(b[11]) != OpLoginReq {
		return l, broken(Opcode(b[11]), LogoutInvalidUnit, "in place of SRP_LOGIN_REQ")
	}
	l.Tag = binary.BigEndian.Uint64(b)
	l.Formats = Formats(binary.BigEndian.Uint16(b[8:]))
	l.Flags = b[10]
	l.MaxITUnit = binary.BigEndian.Uint32(b[12:])
	copy(l.Initiator[:], b[16:])
	copy(l.Target[:], b[32:])
	l.ImmOffset = binary.BigEndian.Uint16(b[48:])
	if action := l.Flags & multiMask; action > MultiMulti {
		return l, broken(OpLoginReq, LogoutInvalidUnit, "multichannel action %d", action)
	}
	return l, nil
}

// Put writes the request.
func (l *LoginReq) Put(b []byte) int {
	b = b[:LoginReqLen]
	clear(b)
	binary.BigEndian.PutUint64(b, l.Tag)
	binary.BigEndian.PutUint16(b[8:], uint16(l.Formats))
	b[10], b[11] = l.Flags, byte(OpLoginReq)
	binary.BigEndian.PutUint32(b[12:], l.MaxITUnit)
	copy(b[16:], l.Initiator[:])
	copy(b[32:], l.Target[:])
	binary.BigEndian.PutUint16(b[48:], l.ImmOffset)
	return LoginReqLen
}

// LoginRsp is SRP_LOGIN_RSP.
type LoginRsp struct {
	Tag       uint64
	Credits   int32  // REQUEST LIMIT DELTA: the requests that the initiator may have sent and not been answered
	MaxITUnit uint32 // bytes that the target takes in a unit
	MaxTIUnit uint32 // bytes that it sends
	Formats   Formats
	Flags     uint8
}

// Put writes the response.
func (l *LoginRsp) Put(b []byte) int {
	b = b[:LoginRspLen]
	clear(b)
	b[0] = byte(OpLoginRsp)
	binary.BigEndian.PutUint32(b[4:], uint32(l.Credits))
	binary.BigEndian.PutUint64(b[8:], l.Tag)
	binary.BigEndian.PutUint32(b[16:], l.MaxITUnit)
	binary.BigEndian.PutUint32(b[20:], l.MaxTIUnit)
	binary.BigEndian.PutUint16(b[24:], uint16(l.Formats))
	b[26] = l.Flags
	return LoginRspLen
}

// ParseLoginRsp reads the private data of an accepted connection.
func ParseLoginRsp(b []byte) (l LoginRsp, err error) {
	if err := long(OpLoginRsp, b, LoginRspLen); err != nil {
		return l, err
	}
	if Opcode(b[0]) != OpLoginRsp {
		return l, broken(Opcode(b[0]), LogoutInvalidUnit, "in place of SRP_LOGIN_RSP")
	}
	return LoginRsp{Tag: binary.BigEndian.Uint64(b[8:]), Credits: int32(binary.BigEndian.Uint32(b[4:])), MaxITUnit: binary.BigEndian.Uint32(b[16:]),
		MaxTIUnit: binary.BigEndian.Uint32(b[20:]), Formats: Formats(binary.BigEndian.Uint16(b[24:])), Flags: b[26]}, nil
}

// RejectReason is why a login was refused.
type RejectReason uint32

// Reasons of SRP_LOGIN_REJ.
const (
	RejUnable          RejectReason = 0x00010000
	RejResources       RejectReason = 0x00010001
	RejUnitTooLarge    RejectReason = 0x00010002
	RejNoNexus         RejectReason = 0x00010003 // no such target port, or none for this initiator
	RejFormat          RejectReason = 0x00010004
	RejNoMultichannel  RejectReason = 0x00010005
	RejTooManyChannels RejectReason = 0x00010006
)

var rejectNames = [...]string{"unable to establish the channel", "insufficient channel resources", "requested unit length too large", "unable to associate the channel with an I_T nexus",
	"unsupported data buffer format", "no multiple channels", "initiator channel limit reached"}

func (r RejectReason) String() string {
	if i := r - RejUnable; uint32(i) < uint32(len(rejectNames)) {
		return rejectNames[i]
	}
	return fmt.Sprintf("reason %08Xh", uint32(r))
}

// LoginRej is SRP_LOGIN_REJ.
type LoginRej struct {
	Tag     uint64
	Reason  RejectReason
	Formats Formats
}

// Put writes the refusal.
func (l *LoginRej) Put(b []byte) int {
	b = b[:LoginRejLen]
	clear(b)
	b[0] = byte(OpLoginRej)
	binary.BigEndian.PutUint32(b[4:], uint32(l.Reason))
	binary.BigEndian.PutUint64(b[8:], l.Tag)
	binary.BigEndian.PutUint16(b[24:], uint16(l.Formats))
	return LoginRejLen
}

// ParseLoginRej reads the private data of a rejected connection.
func ParseLoginRej(b []byte) (l LoginRej, err error) {
	if err := long(OpLoginRej, b, LoginRejLen); err != nil {
		return l, err
	}
	if Opcode(b[0]) != OpLoginRej {
		return l, broken(Opcode(b[0]), LogoutInvalidUnit, "in place of SRP_LOGIN_REJ")
	}
	return LoginRej{Tag: binary.BigEndian.Uint64(b[8:]), Reason: RejectReason(binary.BigEndian.Uint32(b[4:])), Formats: Formats(binary.BigEndian.Uint16(b[24:]))}, nil
}

// LogoutReason is why a target ends a channel.
type LogoutReason uint32

// Reasons of SRP_T_LOGOUT.
const (
	LogoutNone         LogoutReason = 0
	LogoutInactive     LogoutReason = 1
	LogoutInvalidUnit  LogoutReason = 2
	LogoutUnasked      LogoutReason = 3 // an answer to what was not asked
	LogoutMultichannel LogoutReason = 4 // a new login has ended the channel
	LogoutOutFormat    LogoutReason = 6
	LogoutInFormat     LogoutReason = 7
	LogoutOutCount     LogoutReason = 8
	LogoutInCount      LogoutReason = 9
)

// PutTLogout writes SRP_T_LOGOUT.
func PutTLogout(b []byte, why LogoutReason, tag uint64) int {
	return putShort(b, OpTLogout, uint32(why), tag)
}

// ParseTLogout reads SRP_T_LOGOUT.
func ParseTLogout(b []byte) (why LogoutReason, tag uint64, err error) {
	n, tag, err := parseShort(b, OpTLogout)
	return LogoutReason(n), tag, err
}

// PutILogout writes SRP_I_LOGOUT.
func PutILogout(b []byte, tag uint64) int { return putShort(b, OpILogout, 0, tag) }

// ParseILogout reads SRP_I_LOGOUT.
func ParseILogout(b []byte) (tag uint64, err error) {
	_, tag, err = parseShort(b, OpILogout)
	return tag, err
}

// PutCredReq writes SRP_CRED_REQ, which raises the request limit by credits.
func PutCredReq(b []byte, credits int32, tag uint64) int {
	return putShort(b, OpCredReq, uint32(credits), tag)
}

// ParseCredReq reads SRP_CRED_REQ.
func ParseCredReq(b []byte) (credits int32, tag uint64, err error) {
	n, tag, err := parseShort(b, OpCredReq)
	return int32(n), tag, err
}

// PutCredRsp writes SRP_CRED_RSP.
func PutCredRsp(b []byte, tag uint64) int { return putShort(b, OpCredRsp, 0, tag) }

// ParseCredRsp reads SRP_CRED_RSP.
func ParseCredRsp(b []byte) (tag uint64, err error) {
	_, tag, err = parseShort(b, OpCredRsp)
	return tag, err
}

// PutAERRsp writes SRP_AER_RSP.
func PutAERRsp(b []byte, tag uint64) int { return putShort(b, OpAERRsp, 0, tag) }

// ParseAERRsp reads SRP_AER_RSP.
func ParseAERRsp(b []byte) (tag uint64, err error) {
	_, tag, err = parseShort(b, OpAERRsp)
	return tag, err
}
