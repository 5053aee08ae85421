package nlm4

import "github.com/sluice-storage/sluice/internal/xdr"

// The network status monitor (X/Open XNFS C702 chapter 11).
const (
	NSMProg = 100024
	NSMVers = 1
)

// Procedures of the status monitor.
const (
	NSMProcNull      = 0
	NSMProcStat      = 1
	NSMProcMon       = 2
	NSMProcUnmon     = 3
	NSMProcUnmonAll  = 4
	NSMProcSimuCrash = 5
	NSMProcNotify    = 6
)

const maxMonName = 1024 // SM_MAXSTRLEN, bytes

// Notify are the arguments of SM_NOTIFY: the host rebooted, and its state is now State (odd while it is up).
type Notify struct {
	Name  []byte
	State uint32
}

// Append appends the arguments.
func (a *Notify) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendOpaque(b, a.Name), a.State)
}

// Parse takes the arguments from r.
func (a *Notify) Parse(r *xdr.Reader) { a.Name, a.State = r.Opaque(maxMonName), r.Uint32() }

// ParseMonName takes the sm_name of STAT from r.
func ParseMonName(r *xdr.Reader) []byte { return r.Opaque(maxMonName) }
