package iscsi

import "encoding/binary"

// PDU is one header in decoded form. Put writes all 48 bytes; Parse reads what Put wrote and ignores reserved fields.
type PDU interface {
	Put(BHS)
	Parse(BHS)
}

// Append appends the header of p to b.
func Append(b []byte, p PDU) []byte {
	n := len(b)
	var zero [BHSLen]byte
	b = append(b, zero[:]...)
	p.Put(BHS(b[n:]))
	return b
}

// Attr is the task attribute of a SCSI Command (RFC 7143 section 11.3.1).
type Attr uint8

// Task attributes.
const (
	Untagged Attr = iota
	Simple
	Ordered
	HeadOfQueue
	ACA
)

// SCSICommand is the PDU of RFC 7143 section 11.3.
type SCSICommand struct {
	Immediate, Final, Read, Write bool
	Attr                          Attr
	AHSLen, DataLen               int // bytes
	LUN                           uint64
	ITT, EDTL, CmdSN, ExpStatSN   uint32
	CDB                           [16]byte
}

// Put writes the header.
func (p *SCSICommand) Put(b BHS) {
	b.startRequest(OpSCSICommand, p.Immediate, flag(p.Final, FlagFinal)|flag(p.Read, FlagRead)|flag(p.Write, FlagWrite)|uint8(p.Attr&7), p.DataLen)
	b.SetAHSLen(p.AHSLen)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.EDTL)
	b.put32(24, p.CmdSN)
	b.put32(28, p.ExpStatSN)
	copy(b[32:48], p.CDB[:])
}

// Parse reads the header.
func (p *SCSICommand) Parse(b BHS) {
	f := b.Flags()
	*p = SCSICommand{Immediate: b.Immediate(), Final: b.Final(), Read: f&FlagRead != 0, Write: f&FlagWrite != 0, Attr: Attr(f & 7),
		AHSLen: b.AHSLen(), DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(), EDTL: b.EDTL(), CmdSN: b.CmdSN(), ExpStatSN: b.ExpStatSN(),
		CDB: [16]byte(b[32:48])}
}

// TaskFunction is a task management function (RFC 7143 section 11.5.1, RFC 7144 section 7).
type TaskFunction uint8

// Task management functions.
const (
	AbortTask        TaskFunction = 1
	AbortTaskSet     TaskFunction = 2
	ClearACA         TaskFunction = 3
	ClearTaskSet     TaskFunction = 4
	LogicalUnitReset TaskFunction = 5
	TargetWarmReset  TaskFunction = 6
	TargetColdReset  TaskFunction = 7
	TaskReassign     TaskFunction = 8
	QueryTask        TaskFunction = 9
	QueryTaskSet     TaskFunction = 10
	ITNexusReset     TaskFunction = 11
	QueryAsyncEvent  TaskFunction = 12
)

// TaskRequest is the PDU of RFC 7143 section 11.5.
type TaskRequest struct {
	Immediate                                          bool
	Function                                           TaskFunction
	LUN                                                uint64
	ITT, RefTag, CmdSN, ExpStatSN, RefCmdSN, ExpDataSN uint32
}

// Put writes the header.
func (p *TaskRequest) Put(b BHS) {
	b.startRequest(OpTaskRequest, p.Immediate, FlagFinal|uint8(p.Function&0x7f), 0)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.RefTag)
	b.put32(24, p.CmdSN)
	b.put32(28, p.ExpStatSN)
	b.put32(32, p.RefCmdSN)
	b.put32(36, p.ExpDataSN)
}

// Parse reads the header.
func (p *TaskRequest) Parse(b BHS) {
	*p = TaskRequest{Immediate: b.Immediate(), Function: TaskFunction(b[1] & 0x7f), LUN: b.LUN(), ITT: b.ITT(), RefTag: b.TTT(),
		CmdSN: b.CmdSN(), ExpStatSN: b.ExpStatSN(), RefCmdSN: binary.BigEndian.Uint32(b[32:]), ExpDataSN: b.DataSN()}
}

// DataOut is the PDU of RFC 7143 section 11.7, initiator to target.
type DataOut struct {
	Final                               bool
	DataLen                             int
	LUN                                 uint64
	ITT, TTT, ExpStatSN, DataSN, Offset uint32
}

// Put writes the header.
func (p *DataOut) Put(b BHS) {
	b.start(OpDataOut, flag(p.Final, FlagFinal), p.DataLen)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	b.put32(28, p.ExpStatSN)
	b.put32(36, p.DataSN)
	b.put32(40, p.Offset)
}

// Parse reads the header.
func (p *DataOut) Parse(b BHS) {
	*p = DataOut{Final: b.Final(), DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(), TTT: b.TTT(), ExpStatSN: b.ExpStatSN(),
		DataSN: b.DataSN(), Offset: b.Offset()}
}

// TextRequest is the PDU of RFC 7143 section 11.10.
type TextRequest struct {
	Immediate, Final, Continue bool
	DataLen                    int
	LUN                        uint64
	ITT, TTT, CmdSN, ExpStatSN uint32
}

// Put writes the header.
func (p *TextRequest) Put(b BHS) {
	b.startRequest(OpTextRequest, p.Immediate, flag(p.Final, FlagFinal)|flag(p.Continue, FlagContinue), p.DataLen)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	b.put32(24, p.CmdSN)
	b.put32(28, p.ExpStatSN)
}

// Parse reads the header.
func (p *TextRequest) Parse(b BHS) {
	*p = TextRequest{Immediate: b.Immediate(), Final: b.Final(), Continue: b.Continue(), DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(),
		TTT: b.TTT(), CmdSN: b.CmdSN(), ExpStatSN: b.ExpStatSN()}
}

// Stage is a stage of login (RFC 7143 section 11.12.3).
type Stage uint8

// Stages of login.
const (
	StageSecurity    Stage = 0
	StageOperational Stage = 1
	StageFullFeature Stage = 3
)

func (s Stage) String() string {
	switch s {
	case StageSecurity:
		return "SecurityNegotiation"
	case StageOperational:
		return "LoginOperationalNegotiation"
	case StageFullFeature:
		return "FullFeaturePhase"
	}
	return "reserved stage 2"
}

// LoginRequest is the PDU of RFC 7143 section 11.12.
type LoginRequest struct {
	Transit, Continue      bool
	CSG, NSG               Stage
	VersionMax, VersionMin uint8
	DataLen                int
	ISID                   ISID
	TSIH                   uint16
	ITT                    uint32
	CID                    uint16
	CmdSN, ExpStatSN       uint32
}

func loginFlags(transit, cont bool, csg, nsg Stage) uint8 {
	return flag(transit, FlagFinal) | flag(cont, FlagContinue) | uint8(csg&3)<<2 | uint8(nsg&3)
}

// Put writes the header; a Login Request is always immediate.
func (p *LoginRequest) Put(b BHS) {
	b.startRequest(OpLoginRequest, true, loginFlags(p.Transit, p.Continue, p.CSG, p.NSG), p.DataLen)
	b[2], b[3] = p.VersionMax, p.VersionMin
	copy(b[8:14], p.ISID[:])
	binary.BigEndian.PutUint16(b[14:], p.TSIH)
	b.put32(16, p.ITT)
	binary.BigEndian.PutUint16(b[20:], p.CID)
	b.put32(24, p.CmdSN)
	b.put32(28, p.ExpStatSN)
}

// Parse reads the header.
func (p *LoginRequest) Parse(b BHS) {
	*p = LoginRequest{Transit: b.Final(), Continue: b.Continue(), CSG: Stage(b[1] >> 2 & 3), NSG: Stage(b[1] & 3), VersionMax: b[2],
		VersionMin: b[3], DataLen: b.DataLen(), ISID: ISID(b[8:14]), TSIH: binary.BigEndian.Uint16(b[14:]), ITT: b.ITT(),
		CID: binary.BigEndian.Uint16(b[20:]), CmdSN: b.CmdSN(), ExpStatSN: b.ExpStatSN()}
}

// LogoutReason says what a Logout Request ends (RFC 7143 section 11.14.1).
type LogoutReason uint8

// Logout reasons.
const (
	LogoutSession    LogoutReason = 0
	LogoutConnection LogoutReason = 1
	LogoutRecovery   LogoutReason = 2
)

// LogoutRequest is the PDU of RFC 7143 section 11.14.
type LogoutRequest struct {
	Immediate        bool
	Reason           LogoutReason
	ITT              uint32
	CID              uint16
	CmdSN, ExpStatSN uint32
}

// Put writes the header.
func (p *LogoutRequest) Put(b BHS) {
	b.startRequest(OpLogoutReq, p.Immediate, FlagFinal|uint8(p.Reason&0x7f), 0)
	b.put32(16, p.ITT)
	binary.BigEndian.PutUint16(b[20:], p.CID)
	b.put32(24, p.CmdSN)
	b.put32(28, p.ExpStatSN)
}

// Parse reads the header.
func (p *LogoutRequest) Parse(b BHS) {
	*p = LogoutRequest{Immediate: b.Immediate(), Reason: LogoutReason(b[1] & 0x7f), ITT: b.ITT(), CID: binary.BigEndian.Uint16(b[20:]),
		CmdSN: b.CmdSN(), ExpStatSN: b.ExpStatSN()}
}

// SNACKType is what a SNACK Request asks for (RFC 7143 section 11.16.1).
type SNACKType uint8

// SNACK types.
const (
	SNACKDataR2T SNACKType = 0
	SNACKStatus  SNACKType = 1
	SNACKDataAck SNACKType = 2
	SNACKRData   SNACKType = 3
)

// SNACK is the PDU of RFC 7143 section 11.16.
type SNACK struct {
	Type                                SNACKType
	LUN                                 uint64
	ITT, Tag, ExpStatSN, BegRun, RunLen uint32
}

// Put writes the header.
func (p *SNACK) Put(b BHS) {
	b.start(OpSNACK, FlagFinal|uint8(p.Type&15), 0)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.Tag)
	b.put32(28, p.ExpStatSN)
	b.put32(40, p.BegRun)
	b.put32(44, p.RunLen)
}

// Parse reads the header.
func (p *SNACK) Parse(b BHS) {
	*p = SNACK{Type: SNACKType(b[1] & 15), LUN: b.LUN(), ITT: b.ITT(), Tag: b.TTT(), ExpStatSN: b.ExpStatSN(), BegRun: b.Offset(), RunLen: b.Residual()}
}

// NopOut is the PDU of RFC 7143 section 11.18.
type NopOut struct {
	Immediate                  bool
	DataLen                    int
	LUN                        uint64
	ITT, TTT, CmdSN, ExpStatSN uint32
}

// Put writes the header.
func (p *NopOut) Put(b BHS) {
	b.startRequest(OpNopOut, p.Immediate, FlagFinal, p.DataLen)
	b.putLUN(p.LUN)
	b.put32(16, p.ITT)
	b.put32(20, p.TTT)
	b.put32(24, p.CmdSN)
	b.put32(28, p.ExpStatSN)
}

// Parse reads the header.
func (p *NopOut) Parse(b BHS) {
	*p = NopOut{Immediate: b.Immediate(), DataLen: b.DataLen(), LUN: b.LUN(), ITT: b.ITT(), TTT: b.TTT(), CmdSN: b.CmdSN(), ExpStatSN: b.ExpStatSN()}
}
