package scsi

import "fmt"

// Status is a SCSI status code (SAM-5 section 5.3).
type Status uint8

// Status codes, with their wire values.
const (
	StatusGood                Status = 0x00
	StatusCheckCondition      Status = 0x02
	StatusConditionMet        Status = 0x04
	StatusBusy                Status = 0x08
	StatusReservationConflict Status = 0x18
	StatusTaskSetFull         Status = 0x28
	StatusACAActive           Status = 0x30
	StatusTaskAborted         Status = 0x40
)

func (s Status) String() string {
	switch s {
	case StatusGood:
		return "GOOD"
	case StatusCheckCondition:
		return "CHECK CONDITION"
	case StatusConditionMet:
		return "CONDITION MET"
	case StatusBusy:
		return "BUSY"
	case StatusReservationConflict:
		return "RESERVATION CONFLICT"
	case StatusTaskSetFull:
		return "TASK SET FULL"
	case StatusACAActive:
		return "ACA ACTIVE"
	case StatusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("status %02Xh", uint8(s))
}

// SenseKey is the general category of a condition (SPC-4 section 4.5.6).
type SenseKey uint8

// Sense keys, with their wire values.
const (
	NoSense        SenseKey = 0x0
	RecoveredError SenseKey = 0x1
	NotReady       SenseKey = 0x2
	MediumError    SenseKey = 0x3
	HardwareError  SenseKey = 0x4
	IllegalRequest SenseKey = 0x5
	UnitAttention  SenseKey = 0x6
	DataProtect    SenseKey = 0x7
	BlankCheck     SenseKey = 0x8
	CopyAborted    SenseKey = 0xA
	AbortedCommand SenseKey = 0xB
	VolumeOverflow SenseKey = 0xD
	Miscompare     SenseKey = 0xE
	Completed      SenseKey = 0xF
)

// ASC is an additional sense code in its upper byte and its qualifier in the lower (SPC-4 annex D).
type ASC uint16

// Additional sense codes with qualifiers.
const (
	ASCNone                      ASC = 0x0000
	ASCCopyTargetUnreachable     ASC = 0x0D02
	ASCOperationInProgress       ASC = 0x0016
	ASCSanitizeInProgressInfo    ASC = 0x001E
	ASCNotReady                  ASC = 0x0400
	ASCNotReadyBecoming          ASC = 0x0401
	ASCNotReadyStart             ASC = 0x0402
	ASCNotReadyManual            ASC = 0x0403 // manual intervention required
	ASCFormatInProgress          ASC = 0x0404
	ASCALUATransition            ASC = 0x040A
	ASCALUAStandby               ASC = 0x040B
	ASCALUAUnavailable           ASC = 0x040C
	ASCSanitizeInProgress        ASC = 0x041B
	ASCWriteError                ASC = 0x0C00
	ASCUnexpectedUnsolicited     ASC = 0x0C0C
	ASCNotEnoughUnsolicited      ASC = 0x0C0D
	ASCThirdPartyDeviceFailure   ASC = 0x0D01
	ASCReadError                 ASC = 0x1100
	ASCParameterListLength       ASC = 0x1A00
	ASCMiscompare                ASC = 0x1D00
	ASCInvalidOpcode             ASC = 0x2000
	ASCLBAOutOfRange             ASC = 0x2100
	ASCInvalidFieldInCDB         ASC = 0x2400
	ASCLUNotSupported            ASC = 0x2500
	ASCInvalidFieldInParameters  ASC = 0x2600
	ASCTooManyTargetDescriptors  ASC = 0x2606
	ASCUnsupportedTargetDesc     ASC = 0x2607
	ASCTooManySegmentDescriptors ASC = 0x2608
	ASCUnsupportedSegmentDesc    ASC = 0x2609
	ASCInvalidRelease            ASC = 0x2604
	ASCInlineDataLength          ASC = 0x260A
	ASCWriteProtected            ASC = 0x2700
	ASCSoftwareWriteProtected    ASC = 0x2702
	ASCSpaceAllocationFailed     ASC = 0x2707
	ASCMediumMayHaveChanged      ASC = 0x2800
	ASCPowerOnOrReset            ASC = 0x2900
	ASCPowerOn                   ASC = 0x2901
	ASCBusDeviceReset            ASC = 0x2903
	ASCNexusLoss                 ASC = 0x2907
	ASCModeParametersChanged     ASC = 0x2A01
	ASCLogParametersChanged      ASC = 0x2A02
	ASCReservationsPreempted     ASC = 0x2A03
	ASCReservationsReleased      ASC = 0x2A04
	ASCRegistrationsPreempted    ASC = 0x2A05
	ASCAsymmetricAccessChanged   ASC = 0x2A06
	ASCImplicitTransitionFailed  ASC = 0x2A07
	ASCCapacityChanged           ASC = 0x2A09
	ASCTimestampChanged          ASC = 0x2A10
	ASCCommandSequence           ASC = 0x2C00
	ASCCommandsCleared           ASC = 0x2F00
	ASCFormatFailed              ASC = 0x3101
	ASCSanitizeFailed            ASC = 0x3103
	ASCSavingNotSupported        ASC = 0x3900
	ASCMediumNotPresent          ASC = 0x3A00
	ASCTargetConditionsChanged   ASC = 0x3F00
	ASCInquiryDataChanged        ASC = 0x3F03
	ASCLUNsChanged               ASC = 0x3F0E
	ASCThinThreshold             ASC = 0x3807
	ASCInternalTargetFailure     ASC = 0x4400
	ASCInvalidMessage            ASC = 0x4900
	ASCProtocolCRC               ASC = 0x4705
	ASCDataPhaseError            ASC = 0x4B00
	ASCOverlappedCommands        ASC = 0x4E00
	ASCInsufficientResources     ASC = 0x5503
	ASCInsufficientRegistrations ASC = 0x5504
	ASCRemovalPrevented          ASC = 0x5302
	ASCFailurePrediction         ASC = 0x5D00
	ASCFailurePredictionTest     ASC = 0x5DFF
	ASCSetTPGFailed              ASC = 0x670A
	ASCUnreachableCopyTarget     ASC = 0x0804
	ASCIncorrectCopyTarget       ASC = 0x0D03
)
