package scsi

// Opcode is the first byte of a CDB (SPC-4 annex D.2).
type Opcode uint8

// Operation codes, with their wire values.
const (
	OpTestUnitReady        Opcode = 0x00
	OpRequestSense         Opcode = 0x03
	OpFormatUnit           Opcode = 0x04
	OpRead6                Opcode = 0x08
	OpWrite6               Opcode = 0x0A
	OpInquiry              Opcode = 0x12
	OpModeSelect6          Opcode = 0x15
	OpReserve6             Opcode = 0x16
	OpRelease6             Opcode = 0x17
	OpModeSense6           Opcode = 0x1A
	OpStartStopUnit        Opcode = 0x1B
	OpReceiveDiagnostic    Opcode = 0x1C
	OpSendDiagnostic       Opcode = 0x1D
	OpPreventAllow         Opcode = 0x1E
	OpReadCapacity10       Opcode = 0x25
	OpRead10               Opcode = 0x28
	OpWrite10              Opcode = 0x2A
	OpWriteVerify10        Opcode = 0x2E
	OpVerify10             Opcode = 0x2F
	OpPreFetch10           Opcode = 0x34
	OpSynchronizeCache10   Opcode = 0x35
	OpReadDefectData10     Opcode = 0x37
	OpWriteSame10          Opcode = 0x41
	OpUnmap                Opcode = 0x42
	OpSanitize             Opcode = 0x48
	OpLogSelect            Opcode = 0x4C
	OpLogSense             Opcode = 0x4D
	OpModeSelect10         Opcode = 0x55
	OpReserve10            Opcode = 0x56
	OpRelease10            Opcode = 0x57
	OpModeSense10          Opcode = 0x5A
	OpPersistentReserveIn  Opcode = 0x5E
	OpPersistentReserveOut Opcode = 0x5F
	OpVariableLength       Opcode = 0x7F
	OpExtendedCopy         Opcode = 0x83
	OpReceiveCopyResults   Opcode = 0x84
	OpRead16               Opcode = 0x88
	OpCompareAndWrite      Opcode = 0x89
	OpWrite16              Opcode = 0x8A
	OpOrWrite16            Opcode = 0x8B
	OpWriteVerify16        Opcode = 0x8E
	OpVerify16             Opcode = 0x8F
	OpPreFetch16           Opcode = 0x90
	OpSynchronizeCache16   Opcode = 0x91
	OpWriteSame16          Opcode = 0x93
	OpWriteAtomic16        Opcode = 0x9C
	OpServiceActionIn16    Opcode = 0x9E
	OpReportLuns           Opcode = 0xA0
	OpMaintenanceIn        Opcode = 0xA3
	OpMaintenanceOut       Opcode = 0xA4
	OpRead12               Opcode = 0xA8
	OpWrite12              Opcode = 0xAA
	OpWriteVerify12        Opcode = 0xAE
	OpVerify12             Opcode = 0xAF
	OpReadDefectData12     Opcode = 0xB7
)

// Service actions, with their wire values.
const (
	saReadCapacity16   = 0x10
	saReportReferrals  = 0x13
	saGetLBAStatus     = 0x12
	saReportTPG        = 0x0A
	saReportOpcodes    = 0x0C
	saReportTMFs       = 0x0D
	saReportTimestamp  = 0x0F
	saSetTPG           = 0x0A
	saSetTimestamp     = 0x0F
	saWriteSame32      = 0x000D
	noSA               = -1
	saCopyStatus       = 0x00
	saCopyParameters   = 0x03
	saCopyFailed       = 0x04
	saExtendedCopyLID1 = 0x00
)
