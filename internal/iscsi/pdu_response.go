package iscsi

import "encoding/binary"

// Numbers are the sequence numbers that every response carries (RFC 7143 section 4.2.2).
type Numbers struct{ StatSN, ExpCmdSN, MaxCmdSN uint32 }

func (n Numbers) put(b BHS) {
	b.put32(24, n.StatSN)
	b.put32(28, n.ExpCmdSN)
	b.put32(32, n.MaxCmdSN)
}

func numbers(b BHS) Numbers { return Numbers{b.StatSN(), b.ExpCmdSN(), b.MaxCmdSN()} }

// Response codes of a SCSI Response (RFC 7143 section 11.4.3).
const (
	ResponseCompleted     uint8 = 0
	ResponseTargetFailure uint8 = 1
)

// SCSIResponse is the PDU of RFC 7143 section 11.4. Its data segment is a two-byte SenseLength and the sense data.
type SCSIResponse struct {
	BidiOver, BidiUnder, Overflow, Underflow bool
	Response, Status                         uint8
	DataLen                                  int
	ITT, SNACKTag                            uint32
	Numbers
	ExpDataSN, BidiResidual, Residual uint32
}

// Put writes the header.
func (p *SCSIResponse) Put(b BHS) {
	b.start(OpSCSIResponse, FlagFinal|flag(p.BidiOver, FlagBidiOver)|flag(p.BidiUnder, FlagBidiUnder)|flag(p.Overflow, FlagOverflow)|
		flag(p.Underflow, FlagUnderflow), p.DataLen)
	b[2], b[3] = p.Response, p.Status
	b.put32(16, p.ITT)
	b.put32(20, p.SNACKTag)
	p.Numbers.put(b)
	b.put32(36, p.ExpDataSN)
	b.put32(40, p.BidiResidual)
	b.put32(44, p.Residual)
}

// Parse reads the header.
func (p *SCSIResponse) Parse(b BHS) {
	f := b.Flags()
	*p = SCSIResponse{BidiOver: f&FlagBidiOver != 0, BidiUnder: f&FlagBidiUnder != 0, Overflow: f&FlagOverflow != 0,
		Underflow: f&FlagUnderflow != 0, Response: b[2], Status: b[3], DataLen: b.DataLen(), ITT: b.ITT(), SNACKTag: b.TTT(),
		Numbers: numbers(b), ExpDataSN: b.DataSN(), BidiResidual: b.Offset(), Residual: b.Residual()}
}

// TaskStatus is the answer to a task management request (RFC 7143 section 11.6.1, RFC 7144 section 7.2).
type TaskStatus uint8

// Task management responses.
const (
	TaskComplete      TaskStatus = 0
	TaskNotFound      TaskStatus = 1
	TaskNoLUN         TaskStatus = 2
	TaskAllegiant     TaskStatus = 3
	TaskNoReassign    TaskStatus = 4
	TaskNotSupported  TaskStatus = 5
	TaskNotAuthorized TaskStatus = 6
	TaskSucceeded     TaskStatus = 7
	TaskRejected      TaskStatus = 255
)

func (s TaskStatus) String() string {
	switch s {
	case TaskComplete:
		return "function complete"
	case TaskNotFound:
		return "task does not exist"
	case TaskNoLUN:
		return "LUN does not exist"
	case TaskAllegiant:
		return "task still allegiant"
	case TaskNoReassign:
		return "task allegiance reassignment not supported"
	case TaskNotSupported:
		return "function not supported"
	case TaskNotAuthorized:
		return "function authorization failed"
	case TaskSucceeded:
		return "function succeeded"
	case TaskRejected:
		return "function rejected"
	}
	return "reserved response"
}

// TaskResponse is the PDU of RFC 7143 section 11.6. Info is the Additional Response Information of RFC 7144 section 7.2.
type TaskResponse struct {
	Response TaskStatus
	Info     [3]byte // additional response information (RFC 7144 section 6.4.1)
	ITT      uint32
	Numbers
}

// Put writes the header.
func (p *TaskResponse) Put(b BHS) {
	b.start(OpTaskResponse, FlagFinal, 0)
	b[2] = uint8(p.Response)
	copy(b[8:11], p.Info[:])
	b.put32(16, p.ITT)
	p.Numbers.put(b)
}

// Parse reads the header.
func (p *TaskResponse) Parse(b BHS) {
	*p = TaskResponse{Response: TaskStatus(b[2]), Info: [3]byte(b[8:11]), ITT: b.ITT(), Numbers: numbers(b)}
}

// DataIn is the PDU of RFC 7143 section 11.7, target to initiator. Status and residuals count only with HasStatus.
type DataIn struct {
	Final, Ack, Overflow, Underflow, HasStatus bool
	Status                                     uint8
	DataLen                                    int
	LUN                                        uint64
	ITT, TTT                                   uint32
	Numbers
	DataSN, Offset, Residual uint32
}

// Put writes the header.
func (p *DataIn) Put(b BHS) {
	b.start(OpDataIn, flag(p.Final, FlagFinal)|flag(p.Ack, FlagAck)|flag(p.Overflow, FlagOverflow)|flag(p.Underflow, FlagUnderflow)|
		flag(p.HasStatus, FlagStatus), p.DataLen)
	b[3] = p.Status
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	p.Numbers.put(b)
	b.put32(36, p.DataSN)
	b.put32(40, p.Offset)
	b.put32(44, p.Residual)
}

// Parse reads the header.
func (p *DataIn) Parse(b BHS) {
	f := b.Flags()
	*p = DataIn{Final: b.Final(), Ack: f&FlagAck != 0, Overflow: f&FlagOverflow != 0, Underflow: f&FlagUnderflow != 0,
		HasStatus: f&FlagStatus != 0, Status: b[3], DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(), TTT: b.TTT(), Numbers: numbers(b),
		DataSN: b.DataSN(), Offset: b.Offset(), Residual: b.Residual()}
}

// R2T is the PDU of RFC 7143 section 11.8.
type R2T struct {
	LUN      uint64
	ITT, TTT uint32
	Numbers
	R2TSN, Offset, Length uint32
}

// Put writes the header.
func (p *R2T) Put(b BHS) {
	b.start(OpR2T, FlagFinal, 0)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	p.Numbers.put(b)
	b.put32(36, p.R2TSN)
	b.put32(40, p.Offset)
	b.put32(44, p.Length)
}

// Parse reads the header.
func (p *R2T) Parse(b BHS) {
	*p = R2T{LUN: b.LUN(), ITT: b.ITT(), TTT: b.TTT(), Numbers: numbers(b), R2TSN: b.DataSN(), Offset: b.Offset(), Length: b.Residual()}
}

// AsyncEvent is the kind of an Asynchronous Message (RFC 7143 section 11.9.1).
type AsyncEvent uint8

// Asynchronous events.
const (
	AsyncSCSI           AsyncEvent = 0
	AsyncLogout         AsyncEvent = 1
	AsyncDropConnection AsyncEvent = 2
	AsyncDropSession    AsyncEvent = 3
	AsyncNegotiate      AsyncEvent = 4
	AsyncTermination    AsyncEvent = 5
)

// Async is the PDU of RFC 7143 section 11.9.
type Async struct {
	Event   AsyncEvent
	VCode   uint8
	DataLen int
	LUN     uint64
	Numbers
	Param1, Param2, Param3 uint16
}

// Put writes the header.
func (p *Async) Put(b BHS) {
	b.start(OpAsync, FlagFinal, p.DataLen)
	b.putLUN(p.LUN)
	b.put32(16, Reserved)
	p.Numbers.put(b)
	b[36], b[37] = uint8(p.Event), p.VCode
	binary.BigEndian.PutUint16(b[38:], p.Param1)
	binary.BigEndian.PutUint16(b[40:], p.Param2)
	binary.BigEndian.PutUint16(b[42:], p.Param3)
}

// Parse reads the header.
func (p *Async) Parse(b BHS) {
	*p = Async{Event: AsyncEvent(b[36]), VCode: b[37], DataLen: b.DataLen(), LUN: b.LUN(), Numbers: numbers(b),
		Param1: binary.BigEndian.Uint16(b[38:]), Param2: binary.BigEndian.Uint16(b[40:]), Param3: binary.BigEndian.Uint16(b[42:])}
}

// TextResponse is the PDU of RFC 7143 section 11.11.
type TextResponse struct {
	Final, Continue bool
	DataLen         int
	LUN             uint64
	ITT, TTT        uint32
	Numbers
}

// Put writes the header.
func (p *TextResponse) Put(b BHS) {
	b.start(OpTextResponse, flag(p.Final, FlagFinal)|flag(p.Continue, FlagContinue), p.DataLen)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	p.Numbers.put(b)
}

// Parse reads the header.
func (p *TextResponse) Parse(b BHS) {
	*p = TextResponse{Final: b.Final(), Continue: b.Continue(), DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(), TTT: b.TTT(), Numbers: numbers(b)}
}

// LoginResponse is the PDU of RFC 7143 section 11.13.
type LoginResponse struct {
	Transit, Continue         bool
	CSG, NSG                  Stage
	VersionMax, VersionActive uint8
	DataLen                   int
	ISID                      ISID
	TSIH                      uint16
	ITT                       uint32
	Numbers
	Status LoginStatus
}

// Put writes the header.
func (p *LoginResponse) Put(b BHS) {
	b.start(OpLoginResponse, loginFlags(p.Transit, p.Continue, p.CSG, p.NSG), p.DataLen)
	b[2], b[3] = p.VersionMax, p.VersionActive
	copy(b[8:14], p.ISID[:])
	binary.BigEndian.PutUint16(b[14:], p.TSIH)
	b.put32(16, p.ITT)
	p.Numbers.put(b)
	binary.BigEndian.PutUint16(b[36:], uint16(p.Status))
}

// Parse reads the header.
func (p *LoginResponse) Parse(b BHS) {
	*p = LoginResponse{Transit: b.Final(), Continue: b.Continue(), CSG: Stage(b[1] >> 2 & 3), NSG: Stage(b[1] & 3), VersionMax: b[2],
		VersionActive: b[3], DataLen: b.DataLen(), ISID: ISID(b[8:14]), TSIH: binary.BigEndian.Uint16(b[14:]), ITT: b.ITT(),
		Numbers: numbers(b), Status: LoginStatus(binary.BigEndian.Uint16(b[36:]))}
}

// LogoutStatus is the answer to a logout (RFC 7143 section 11.15.1).
type LogoutStatus uint8

// Logout responses.
const (
	LogoutOK            LogoutStatus = 0
	LogoutNoCID         LogoutStatus = 1
	LogoutNoRecovery    LogoutStatus = 2
	LogoutCleanupFailed LogoutStatus = 3
)

// LogoutResponse is the PDU of RFC 7143 section 11.15.
type LogoutResponse struct {
	Response LogoutStatus
	ITT      uint32
	Numbers
	Time2Wait, Time2Retain uint16 // seconds
}

// Put writes the header.
func (p *LogoutResponse) Put(b BHS) {
	b.start(OpLogoutResp, FlagFinal, 0)
	b[2] = uint8(p.Response)
	b.put32(16, p.ITT)
	p.Numbers.put(b)
	binary.BigEndian.PutUint16(b[40:], p.Time2Wait)
	binary.BigEndian.PutUint16(b[42:], p.Time2Retain)
}

// Parse reads the header.
func (p *LogoutResponse) Parse(b BHS) {
	*p = LogoutResponse{Response: LogoutStatus(b[2]), ITT: b.ITT(), Numbers: numbers(b), Time2Wait: binary.BigEndian.Uint16(b[40:]),
		Time2Retain: binary.BigEndian.Uint16(b[42:])}
}

// RejectReason says what was wrong with a PDU (RFC 7143 section 11.17.1).
type RejectReason uint8

// Reject reasons.
const (
	RejectDataDigest   RejectReason = 0x02
	RejectSNACK        RejectReason = 0x03
	RejectProtocol     RejectReason = 0x04
	RejectNotSupported RejectReason = 0x05
	RejectImmediate    RejectReason = 0x06
	RejectInProgress   RejectReason = 0x07
	RejectDataAck      RejectReason = 0x08
	RejectField        RejectReason = 0x09
	RejectLongOp       RejectReason = 0x0a
	RejectLogoutWait   RejectReason = 0x0c
)

func (r RejectReason) String() string {
	switch r {
	case RejectDataDigest:
		return "data digest error"
	case RejectSNACK:
		return "SNACK rejected"
	case RejectProtocol:
		return "protocol error"
	case RejectNotSupported:
		return "command not supported"
	case RejectImmediate:
		return "too many immediate commands"
	case RejectInProgress:
		return "task in progress"
	case RejectDataAck:
		return "invalid data acknowledgement"
	case RejectField:
		return "invalid PDU field"
	case RejectLongOp:
		return "out of transfer tags"
	case RejectLogoutWait:
		return "waiting for logout"
	}
	return "reserved reason"
}

// Reject is the PDU of RFC 7143 section 11.17. Its data segment is the header of the PDU that was rejected.
type Reject struct {
	Reason  RejectReason
	DataLen int
	Numbers
	DataSN uint32
}

// Put writes the header.
func (p *Reject) Put(b BHS) {
	b.start(OpReject, FlagFinal, p.DataLen)
	b[2] = uint8(p.Reason)
	b.put32(16, Reserved)
	p.Numbers.put(b)
	b.put32(36, p.DataSN)
}

// Parse reads the header.
func (p *Reject) Parse(b BHS) {
	*p = Reject{Reason: RejectReason(b[2]), DataLen: b.DataLen(), Numbers: numbers(b), DataSN: b.DataSN()}
}

// NopIn is the PDU of RFC 7143 section 11.19.
type NopIn struct {
	DataLen  int
	LUN      uint64
	ITT, TTT uint32
	Numbers
}

// Put writes the header.
func (p *NopIn) Put(b BHS) {
	b.start(OpNopIn, FlagFinal, p.DataLen)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	p.Numbers.put(b)
}

// Parse reads the header.
func (p *NopIn) Parse(b BHS) {
	*p = NopIn{DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(), TTT: b.TTT(), Numbers: numbers(b)}
}
