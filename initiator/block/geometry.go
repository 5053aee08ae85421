package block

import "github.com/sluice-storage/sluice/blockdev"

// Unit is what a logical unit says of itself, beside what every block device says. Sizes are bytes. What Geometry bounds is
// the Volume's: it cuts longer requests into the commands that MaxTransfer, MaxUnmap and MaxWriteSame allow.
type Unit struct {
	blockdev.Geometry
	MaxTransfer   int64 // the longest command, 0 for no limit of the target's
	MaxUnmap      int64 // the longest UNMAP; 0: UNMAP is not supported
	UnmapUnit     int64 // the granularity that UNMAP asks for
	MaxWriteSame  int64 // the longest WRITE SAME
	MaxCompare    int64 // the longest COMPARE AND WRITE; 0: not supported
	WriteCache    bool
	WriteThrough  bool   // known to have no volatile cache: what is acknowledged is durable
	TaskAborted   bool   // commands that another initiator clears end with TASK ABORTED (TAS)
	UnmapSame     bool   // WRITE SAME may unmap (LBPWS)
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

func (u *Unit) limits(piece int64) limits {
	l := limits{block: int64(u.Logical), piece: piece, maxUnmap: u.MaxUnmap, maxWriteSame: u.MaxWriteSame, unmapSame: u.UnmapSame,
		writeThrough: u.WriteThrough}
	if u.MaxTransfer > 0 {
		l.piece = min(l.piece, u.MaxTransfer)
	}
	l.piece = max(l.piece/l.block, 1) * l.block
	if l.maxWriteSame == 0 {
		// No limit reported: stay below what one command takes in any implementation, 65535 blocks (WRITE SAME (10)).
		l.maxWriteSame = 65535 * l.block
	}
	return l
}
