package iscsi

// Rule says how the value of a key comes about (RFC 7143 section 6.2).
type Rule uint8

// Rules of negotiation and declaration.
const (
	RuleList     Rule = iota + 1 // the first offered value that the answering side supports
	RuleAnd                      // Boolean AND
	RuleOr                       // Boolean OR
	RuleMin                      // the smaller number
	RuleMax                      // the larger number
	RuleNumber                   // a number, declared
	RuleBool                     // Yes or No, declared
	RuleText                     // text for the owner of the negotiation, declared or in an exchange of its own
	RuleObsolete                 // answered with Reject (section 13.25)
)

// Places where a key may appear, and who may send it.
const (
	InSecurity    uint8 = 1 << iota // SecurityNegotiation
	InOperational                   // LoginOperationalNegotiation
	InFull                          // Full Feature Phase
	ByInitiator
	ByTarget
)

// Frequent combinations.
const (
	inLogin  = InSecurity | InOperational
	anyPhase = InSecurity | InOperational | InFull
	byBoth   = ByInitiator | ByTarget
)

// Key is one row of the table.
type Key struct {
	Name         string
	Rule         Rule
	Default      string
	Min, Max     uint64
	ZeroOK       bool   // 0 is allowed beside Min to Max
	Where        uint8  // phases and senders
	Connection   bool   // scope is the connection, not the session
	Leading      bool   // only on the leading connection
	Repeats      bool   // may come more than once
	NotDiscovery bool   // irrelevant in discovery sessions
	NeedsRDMA    bool   // irrelevant unless RDMAExtensions=Yes
	Want         string // what this implementation supports when its user says nothing; empty: what is offered
	Clause       string
}

const (
	max24 = 1<<24 - 1
	max32 = 1<<32 - 1
)

// Keys is the table: RFC 7143 sections 12 and 13, RFC 7144 section 7.1.1 and RFC 7145 section 6.
var Keys = []Key{
	{Name: "AuthMethod", Rule: RuleList, Default: "None", Where: InSecurity | byBoth, Connection: true, Want: "None", Clause: "12"},
	{Name: "CHAP_A", Rule: RuleText, Where: InSecurity | byBoth, Connection: true, Clause: "12.1.3"},
	{Name: "CHAP_I", Rule: RuleText, Where: InSecurity | byBoth, Connection: true, Clause: "12.1.3"},
	{Name: "CHAP_C", Rule: RuleText, Where: InSecurity | byBoth, Connection: true, Clause: "12.1.3"},
	{Name: "CHAP_N", Rule: RuleText, Where: InSecurity | byBoth, Connection: true, Clause: "12.1.3"},
	{Name: "CHAP_R", Rule: RuleText, Where: InSecurity | byBoth, Connection: true, Clause: "12.1.3"},

	{Name: "HeaderDigest", Rule: RuleList, Default: "None", Where: InOperational | byBoth, Connection: true, Want: "CRC32C,None", Clause: "13.1"},
	{Name: "DataDigest", Rule: RuleList, Default: "None", Where: InOperational | byBoth, Connection: true, Want: "CRC32C,None", Clause: "13.1"},
	{Name: "MaxConnections", Rule: RuleMin, Default: "1", Min: 1, Max: 65535, Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Want: "1", Clause: "13.2"},
	{Name: "SendTargets", Rule: RuleText, Where: InFull | ByInitiator, Clause: "13.3"},
	{Name: "TargetName", Rule: RuleText, Where: anyPhase | byBoth, Repeats: true, Clause: "13.4"},
	{Name: "InitiatorName", Rule: RuleText, Where: inLogin | ByInitiator, Clause: "13.5"},
	{Name: "TargetAlias", Rule: RuleText, Where: anyPhase | ByTarget, Repeats: true, Clause: "13.6"},
	{Name: "InitiatorAlias", Rule: RuleText, Where: anyPhase | ByInitiator, Clause: "13.7"},
	{Name: "TargetAddress", Rule: RuleText, Where: anyPhase | ByTarget, Repeats: true, Clause: "13.8"},
	{Name: "TargetPortalGroupTag", Rule: RuleText, Where: inLogin | ByTarget, Clause: "13.9"},
	{Name: "InitialR2T", Rule: RuleOr, Default: "Yes", Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Clause: "13.10"},
	{Name: "ImmediateData", Rule: RuleAnd, Default: "Yes", Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Clause: "13.11"},
	{Name: "MaxRecvDataSegmentLength", Rule: RuleNumber, Default: "8192", Min: 512, Max: max24, Where: InOperational | InFull | byBoth, Connection: true, Clause: "13.12"},
	{Name: "MaxBurstLength", Rule: RuleMin, Default: "262144", Min: 512, Max: max24, Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Clause: "13.13"},
	{Name: "FirstBurstLength", Rule: RuleMin, Default: "65536", Min: 512, Max: max24, Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Clause: "13.14"},
	{Name: "DefaultTime2Wait", Rule: RuleMax, Default: "2", Max: 3600, Where: InOperational | byBoth, Leading: true, Clause: "13.15"},
	{Name: "DefaultTime2Retain", Rule: RuleMin, Default: "20", Max: 3600, Where: InOperational | byBoth, Leading: true, Want: "0", Clause: "13.16"},
	{Name: "MaxOutstandingR2T", Rule: RuleMin, Default: "1", Min: 1, Max: 65535, Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Clause: "13.17"},
	{Name: "DataPDUInOrder", Rule: RuleOr, Default: "Yes", Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Want: "Yes", Clause: "13.18"},
	{Name: "DataSequenceInOrder", Rule: RuleOr, Default: "Yes", Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Want: "Yes", Clause: "13.19"},
	{Name: "ErrorRecoveryLevel", Rule: RuleMin, Default: "0", Max: 2, Where: InOperational | byBoth, Leading: true, Want: "0", Clause: "13.20"},
	{Name: "SessionType", Rule: RuleText, Default: "Normal", Where: inLogin | ByInitiator, Leading: true, Clause: "13.21"},
	{Name: "TaskReporting", Rule: RuleList, Default: "RFC3720", Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Want: "RFC3720", Clause: "13.23"},
	{Name: "iSCSIProtocolLevel", Rule: RuleMin, Default: "1", Max: 31, Where: InOperational | byBoth, Leading: true, NotDiscovery: true, Want: "1", Clause: "13.24"},
	{Name: "IFMarker", Rule: RuleObsolete, Default: "No", Where: InOperational | byBoth, Clause: "13.25"},
	{Name: "OFMarker", Rule: RuleObsolete, Default: "No", Where: InOperational | byBoth, Clause: "13.25"},
	{Name: "IFMarkInt", Rule: RuleObsolete, Where: InOperational | byBoth, Clause: "13.25"},
	{Name: "OFMarkInt", Rule: RuleObsolete, Where: InOperational | byBoth, Clause: "13.25"},
	{Name: "X#NodeArchitecture", Rule: RuleText, Where: anyPhase | byBoth, Clause: "13.26"},

	{Name: "RDMAExtensions", Rule: RuleAnd, Default: "No", Where: InOperational | byBoth, Leading: true, Clause: "RFC 7145 6.3"},
	{Name: "TargetRecvDataSegmentLength", Rule: RuleMin, Default: "8192", Min: 512, Max: max24, Where: InOperational | byBoth, Connection: true, NeedsRDMA: true, Clause: "RFC 7145 6.4"},
	{Name: "InitiatorRecvDataSegmentLength", Rule: RuleMin, Default: "8192", Min: 512, Max: max24, Where: InOperational | byBoth, Connection: true, NeedsRDMA: true, Clause: "RFC 7145 6.5"},
	{Name: "MaxOutstandingUnexpectedPDUs", Rule: RuleNumber, Default: "0", Min: 2, Max: max32, ZeroOK: true, Where: InOperational | byBoth, Leading: true, NeedsRDMA: true, Clause: "RFC 7145 6.7"},
	{Name: "MaxAHSLength", Rule: RuleNumber, Default: "256", Min: 2, Max: max32, ZeroOK: true, Where: InOperational | byBoth, Leading: true, NeedsRDMA: true, Clause: "RFC 7145 6.8"},
	{Name: "TaggedBufferForSolicitedDataOnly", Rule: RuleBool, Default: "No", Where: InOperational | ByInitiator, Leading: true, NeedsRDMA: true, Clause: "RFC 7145 6.9"},
	{Name: "iSERHelloRequired", Rule: RuleBool, Default: "No", Where: InOperational | ByInitiator, Leading: true, NeedsRDMA: true, Clause: "RFC 7145 6.10"},
}

var keyIndex = func() map[string]*Key {
	m := make(map[string]*Key, len(Keys))
	for i := range Keys {
		m[Keys[i].Name] = &Keys[i]
	}
	return m
}()

// LookupKey returns the row of a key, nil for one that is not understood. Names are case-sensitive (section 6.1).
func LookupKey(name string) *Key { return keyIndex[name] }

func (k *Key) declared() bool {
	return k.Rule == RuleNumber || k.Rule == RuleBool || k.Rule == RuleText
}
