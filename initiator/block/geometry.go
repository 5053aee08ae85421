package block

// Geometry is what a logical unit says of itself. Sizes are bytes.
type Geometry struct {
	Size          int64
	Logical       int // logical block
	Physical      int
	OptimalIO     int
	MaxTransfer   int64 // the longest command, 0 for no limit of the target's
	MaxDiscard    int64 // the longest UNMAP; 0: UNMAP is not supported
	DiscardUnit   int64
	MaxWriteSame  int64 // the longest WRITE SAME
	MaxCompare    int64 // the longest COMPARE AND WRITE; 0: not supported
	ReadOnly      bool
	WriteCache    bool
	WriteThrough  bool // known to have no volatile cache: what is acknowledged is durable
	TaskAborted   bool // commands that another initiator clears end with TASK ABORTED (TAS)
	Thin          bool // logical block provisioning is on
	UnmapSame     bool // WRITE SAME may unmap (LBPWS)
	ReadsZero     bool // unmapped blocks read as zeroes (LBPRZ)
	Rotational    bool
	ALUA          bool   // implicit or explicit asymmetric access
	Vendor        string // INQUIRY
	Product       string
	Revision      string
	Serial        string // VPD page 80h
	ID            string // VPD page 83h: the best designator of the logical unit, as "naa.5000..."
	RelativePort  uint16 // of the path that asked
	PortGroup     uint16
	HasPortGroup  bool
	PeripheralRaw uint8
}

// limits are what pieces are cut by.
type limits struct {
	block        int64
	piece        int64
	maxUnmap     int64
	maxWriteSame int64
	unmapSame    bool
	writeThrough bool
	noWriteSame  bool // found out by trying
}

func (g *Geometry) limits(piece int64) limits {
	l := limits{block: int64(g.Logical), piece: piece, maxUnmap: g.MaxDiscard, maxWriteSame: g.MaxWriteSame, unmapSame: g.UnmapSame,
		writeThrough: g.WriteThrough}
	if g.MaxTransfer > 0 {
		l.piece = min(l.piece, g.MaxTransfer)
	}
	l.piece = max(l.piece/l.block, 1) * l.block
	if l.maxWriteSame == 0 {
		// No limit reported: stay below what one command takes in any implementation, 65535 blocks (WRITE SAME (10)).
		l.maxWriteSame = 65535 * l.block
	}
	return l
}
