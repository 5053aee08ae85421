package iscsi

// Params are the results of a login that a session works by. Lengths are bytes, times seconds.
type Params struct {
	RDMA                     bool // RDMAExtensions=Yes
	HeaderDigest, DataDigest bool // CRC32C
	MaxRecv                  int  // the longest data segment this side takes
	MaxSend                  int  // the longest data segment the peer takes
	MaxConnections           int
	InitialR2T               bool
	ImmediateData            bool
	MaxBurst                 int
	FirstBurst               int
	Time2Wait                int
	Time2Retain              int
	MaxOutstandingR2T        int
	ErrorRecoveryLevel       int
	TaskReporting            string
	ProtocolLevel            int
	// PeerUnexpected and PeerAHS are what the peer declared with MaxOutstandingUnexpectedPDUs and MaxAHSLength; 0 is no
	// limit.
	PeerUnexpected, PeerAHS uint32
	// UnexpectedDeclared says that it declared the first of them, 0 or not.
	UnexpectedDeclared bool
	// BaseCoversAll says that the initiator declared TaggedBufferForSolicitedDataOnly=No in so many words: the write
	// base offset covers unsolicited bytes too. Linux and libiscsi declare nothing and mean the opposite.
	BaseCoversAll bool
	HelloRequired bool
}

// Value is the result of a negotiated key, or its default.
func (n *Negotiator) Value(key string) string {
	if v, ok := n.result[key]; ok {
		return v
	}
	if k := LookupKey(key); k != nil {
		// An offer that needed no answer is the result.
		if v, ok := n.offered[key]; ok && (k.Rule == RuleAnd && v == "No" || k.Rule == RuleOr && v == "Yes") {
			return v
		}
		return k.Default
	}
	return ""
}

// Peer is what the peer declared or sent for a key, and whether it did.
func (n *Negotiator) Peer(key string) (string, bool) {
	v, ok := n.peer[key]
	return v, ok
}

// SetDiscovery makes the session a discovery one.
func (n *Negotiator) SetDiscovery() { n.discovery = true }

func (n *Negotiator) int(key string) int {
	v, _ := ParseNumber(n.Value(key))
	return int(v)
}

func (n *Negotiator) peerInt(key string) uint64 {
	v, ok := n.peer[key]
	if !ok {
		v = LookupKey(key).Default
	}
	x, _ := ParseNumber(v)
	return x
}

// Params collects the results. Keys without one have their defaults.
func (n *Negotiator) Params() Params {
	p := Params{
		RDMA:               n.Value("RDMAExtensions") == "Yes",
		HeaderDigest:       n.Value("HeaderDigest") == "CRC32C",
		DataDigest:         n.Value("DataDigest") == "CRC32C",
		MaxConnections:     n.int("MaxConnections"),
		InitialR2T:         n.Value("InitialR2T") == "Yes",
		ImmediateData:      n.Value("ImmediateData") == "Yes",
		MaxBurst:           n.int("MaxBurstLength"),
		FirstBurst:         n.int("FirstBurstLength"),
		Time2Wait:          n.int("DefaultTime2Wait"),
		Time2Retain:        n.int("DefaultTime2Retain"),
		MaxOutstandingR2T:  n.int("MaxOutstandingR2T"),
		ErrorRecoveryLevel: n.int("ErrorRecoveryLevel"),
		TaskReporting:      n.Value("TaskReporting"),
		ProtocolLevel:      n.int("iSCSIProtocolLevel"),
		PeerUnexpected:     uint32(n.peerInt("MaxOutstandingUnexpectedPDUs")),
		PeerAHS:            uint32(n.peerInt("MaxAHSLength")),
		BaseCoversAll:      n.peer["TaggedBufferForSolicitedDataOnly"] == "No",
		HelloRequired:      n.peer["iSERHelloRequired"] == "Yes",
	}
	_, p.UnexpectedDeclared = n.peer["MaxOutstandingUnexpectedPDUs"]
	// FirstBurstLength must not exceed MaxBurstLength (section 13.14); two sides that negotiated otherwise mean less.
	p.FirstBurst = min(p.FirstBurst, p.MaxBurst)
	p.MaxSend, p.MaxRecv = int(n.peerInt("MaxRecvDataSegmentLength")), DefaultRecvData
	if n.sent["MaxRecvDataSegmentLength"] {
		if v, ok := ParseNumber(n.offeredOrWant("MaxRecvDataSegmentLength")); ok {
			p.MaxRecv = int(v)
		}
	}
	if p.RDMA {
		t, i := n.int("TargetRecvDataSegmentLength"), n.int("InitiatorRecvDataSegmentLength")
		p.MaxSend, p.MaxRecv = t, i
		if n.o.Target {
			p.MaxSend, p.MaxRecv = i, t
		}
		p.HeaderDigest, p.DataDigest = false, false
	}
	return p
}

func (n *Negotiator) offeredOrWant(key string) string {
	if v, ok := n.offered[key]; ok {
		return v
	}
	return n.want[key]
}
