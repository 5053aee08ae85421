// Package nlm4 is the wire form of the network lock manager version 4 (RFC 1813 appendix II; X/Open XNFS C702 chapter
// 14) and of the status monitor that goes with it.
package nlm4

import "github.com/sluice-storage/sluice/internal/xdr"

// Program and version.
const (
	Prog = 100021
	Vers = 4
)

// The procedures. Those with Msg are the asynchronous forms, answered by a call of the Res procedure.
const (
	ProcNull       = 0
	ProcTest       = 1
	ProcLock       = 2
	ProcCancel     = 3
	ProcUnlock     = 4
	ProcGranted    = 5
	ProcTestMsg    = 6
	ProcLockMsg    = 7
	ProcCancelMsg  = 8
	ProcUnlockMsg  = 9
	ProcGrantedMsg = 10
	ProcTestRes    = 11
	ProcLockRes    = 12
	ProcCancelRes  = 13
	ProcUnlockRes  = 14
	ProcGrantedRes = 15
	ProcShare      = 20
	ProcUnshare    = 21
	ProcNmLock     = 22
	ProcFreeAll    = 23
)

// Stat is an nlm4_stats.
type Stat uint32

// The values of nlm4_stats.
const (
	Granted       Stat = 0
	Denied        Stat = 1
	DeniedNolocks Stat = 2
	Blocked       Stat = 3
	DeniedGrace   Stat = 4
	Deadlock      Stat = 5
	Rofs          Stat = 6
	StaleFH       Stat = 7
	Fbig          Stat = 8
	Failed        Stat = 9
)

const (
	maxCookie = 1024 // a netobj's bound in bytes (LM_MAXSTRLEN)
	maxName   = 1024
	maxFH     = 64
)

// Lock is an nlm4_lock: a byte range, and who asks for it. Len 0 means to the end of the file.
type Lock struct {
	Caller []byte
	FH     []byte
	Owner  []byte
	SVID   uint32
	Off    uint64
	Len    uint64
}

// Append appends the nlm4_lock.
func (l *Lock) Append(b []byte) []byte {
	b = xdr.AppendOpaque(xdr.AppendOpaque(xdr.AppendOpaque(b, l.Caller), l.FH), l.Owner)
	return xdr.AppendUint64(xdr.AppendUint64(xdr.AppendUint32(b, l.SVID), l.Off), l.Len)
}

// Parse takes an nlm4_lock from r.
func (l *Lock) Parse(r *xdr.Reader) {
	l.Caller, l.FH, l.Owner = r.Opaque(maxName), r.Opaque(maxFH), r.Opaque(maxCookie)
	l.SVID, l.Off, l.Len = r.Uint32(), r.Uint64(), r.Uint64()
}

// TestArgs are the arguments of TEST and of GRANTED.
type TestArgs struct {
	Cookie    []byte
	Exclusive bool
	Lock      Lock
}

// Append appends the arguments.
func (a *TestArgs) Append(b []byte) []byte {
	return a.Lock.Append(xdr.AppendBool(xdr.AppendOpaque(b, a.Cookie), a.Exclusive))
}

// Parse takes the arguments from r.
func (a *TestArgs) Parse(r *xdr.Reader) {
	a.Cookie, a.Exclusive = r.Opaque(maxCookie), r.Bool()
	a.Lock.Parse(r)
}

// LockArgs are the arguments of LOCK and NM_LOCK.
type LockArgs struct {
	Cookie    []byte
	Block     bool
	Exclusive bool
	Lock      Lock
	Reclaim   bool
	State     uint32 // the caller's NSM state
}

// Append appends the arguments.
func (a *LockArgs) Append(b []byte) []byte {
	b = xdr.AppendBool(xdr.AppendBool(xdr.AppendOpaque(b, a.Cookie), a.Block), a.Exclusive)
	return xdr.AppendUint32(xdr.AppendBool(a.Lock.Append(b), a.Reclaim), a.State)
}

// Parse takes the arguments from r.
func (a *LockArgs) Parse(r *xdr.Reader) {
	a.Cookie, a.Block, a.Exclusive = r.Opaque(maxCookie), r.Bool(), r.Bool()
	a.Lock.Parse(r)
	a.Reclaim, a.State = r.Bool(), r.Uint32()
}

// CancelArgs are the arguments of CANCEL.
type CancelArgs struct {
	Cookie    []byte
	Block     bool
	Exclusive bool
	Lock      Lock
}

// Append appends the arguments.
func (a *CancelArgs) Append(b []byte) []byte {
	return a.Lock.Append(xdr.AppendBool(xdr.AppendBool(xdr.AppendOpaque(b, a.Cookie), a.Block), a.Exclusive))
}

// Parse takes the arguments from r.
func (a *CancelArgs) Parse(r *xdr.Reader) {
	a.Cookie, a.Block, a.Exclusive = r.Opaque(maxCookie), r.Bool(), r.Bool()
	a.Lock.Parse(r)
}

// UnlockArgs are the arguments of UNLOCK.
type UnlockArgs struct {
	Cookie []byte
	Lock   Lock
}

// Append appends the arguments.
func (a *UnlockArgs) Append(b []byte) []byte { return a.Lock.Append(xdr.AppendOpaque(b, a.Cookie)) }

// Parse takes the arguments from r.
func (a *UnlockArgs) Parse(r *xdr.Reader) {
	a.Cookie = r.Opaque(maxCookie)
	a.Lock.Parse(r)
}

// Res is the result of LOCK, CANCEL, UNLOCK and GRANTED.
type Res struct {
	Cookie []byte
	Stat   Stat
}

// Append appends the result.
func (s *Res) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendOpaque(b, s.Cookie), uint32(s.Stat))
}

// Parse takes the result from r.
func (s *Res) Parse(r *xdr.Reader) {
	s.Cookie, s.Stat = r.Opaque(maxCookie), Stat(r.Enum("nlm4_stats", uint32(Failed)))
}

// Holder is an nlm4_holder: who is in the way.
type Holder struct {
	Exclusive bool
	SVID      uint32
	Owner     []byte
	Off, Len  uint64
}

// TestRes is the result of TEST; Holder comes with Denied.
type TestRes struct {
	Cookie []byte
	Stat   Stat
	Holder Holder
}

// Append appends the result.
func (s *TestRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(xdr.AppendOpaque(b, s.Cookie), uint32(s.Stat))
	if s.Stat == Denied {
		h := &s.Holder
		b = xdr.AppendOpaque(xdr.AppendUint32(xdr.AppendBool(b, h.Exclusive), h.SVID), h.Owner)
		b = xdr.AppendUint64(xdr.AppendUint64(b, h.Off), h.Len)
	}
	return b
}

// Parse takes the result from r.
func (s *TestRes) Parse(r *xdr.Reader) {
	*s = TestRes{Cookie: r.Opaque(maxCookie), Stat: Stat(r.Enum("nlm4_stats", uint32(Failed)))}
	if s.Stat == Denied {
		s.Holder = Holder{Exclusive: r.Bool(), SVID: r.Uint32(), Owner: r.Opaque(maxCookie), Off: r.Uint64(), Len: r.Uint64()}
	}
}

// ShareArgs are the arguments of SHARE and UNSHARE.
type ShareArgs struct {
	Cookie       []byte
	Caller, FH   []byte
	Owner        []byte
	Mode, Access uint32 // fsh4_mode: what is denied to others; fsh4_access
	Reclaim      bool
}

// Append appends the arguments.
func (a *ShareArgs) Append(b []byte) []byte {
	b = xdr.AppendOpaque(xdr.AppendOpaque(xdr.AppendOpaque(xdr.AppendOpaque(b, a.Cookie), a.Caller), a.FH), a.Owner)
	return xdr.AppendBool(xdr.AppendUint32(xdr.AppendUint32(b, a.Mode), a.Access), a.Reclaim)
}

// Parse takes the arguments from r.
func (a *ShareArgs) Parse(r *xdr.Reader) {
	a.Cookie, a.Caller, a.FH, a.Owner = r.Opaque(maxCookie), r.Opaque(maxName), r.Opaque(maxFH), r.Opaque(maxCookie)
	a.Mode, a.Access, a.Reclaim = r.Enum("fsh4_mode", 3), r.Enum("fsh4_access", 3), r.Bool()
}

// ShareRes is the result of SHARE and UNSHARE.
type ShareRes struct {
	Cookie   []byte
	Stat     Stat
	Sequence uint32
}

// Append appends the result.
func (s *ShareRes) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendUint32(xdr.AppendOpaque(b, s.Cookie), uint32(s.Stat)), s.Sequence)
}

// Parse takes the result from r.
func (s *ShareRes) Parse(r *xdr.Reader) {
	s.Cookie, s.Stat, s.Sequence = r.Opaque(maxCookie), Stat(r.Enum("nlm4_stats", uint32(Failed))), r.Uint32()
}

// FreeAllArgs are the arguments of FREE_ALL: every lock of this host goes.
type FreeAllArgs struct {
	Name  []byte
	State uint32
}

// Append appends the arguments.
func (a *FreeAllArgs) Append(b []byte) []byte {
	return xdr.AppendUint32(xdr.AppendOpaque(b, a.Name), a.State)
}

// Parse takes the arguments from r.
func (a *FreeAllArgs) Parse(r *xdr.Reader) { a.Name, a.State = r.Opaque(maxName), r.Uint32() }
