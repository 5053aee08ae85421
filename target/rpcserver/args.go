package rpcserver

import (
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// Auth is a credential in its wire form (opaque_auth, RFC 5531 section 8.2).
type Auth struct {
	Flavor uint32
	Body   []byte
}

// The flavors that reach a program; calls with others are denied (RFC 5531 section 8.2).
const (
	AuthNone uint32 = oncrpc.AuthNone // the caller says nothing
	AuthSys  uint32 = oncrpc.AuthSys  // a user's numbers, which the caller's host vouches for
)

// Sys is what an AUTH_SYS credential says (RFC 5531 appendix A): of Groups the first NGroups count.
type Sys struct {
	UID, GID uint32
	NGroups  int
	Groups   [oncrpc.MaxGroups]uint32
}

// AcceptStat is what an accepted call has come to (accept_stat, RFC 5531 section 9).
type AcceptStat uint32

func (s AcceptStat) String() string { return oncrpc.AcceptStat(s).String() }

// What a program can make of a call besides SUCCESS. PROG_MISMATCH is the server's to say, from Versions.
const (
	ProgUnavail = AcceptStat(oncrpc.ProgUnavail) // there is no such program
	ProcUnavail = AcceptStat(oncrpc.ProcUnavail) // there is no such procedure
	GarbageArgs = AcceptStat(oncrpc.GarbageArgs) // the arguments could not be decoded
	SystemErr   = AcceptStat(oncrpc.SystemErr)   // the server failed
)

// Args reads a call's arguments (XDR, RFC 4506), one after the other. Each method takes what it returns; behind the first that is not there,
// or not legal, Err is set, and all that follow return zero. Bytes that they return are those of the message, the call's.
type Args xdr.Reader

func (a *Args) reader() *xdr.Reader { return (*xdr.Reader)(a) }

// Err is the first error, nil if everything so far was there and legal.
func (a *Args) Err() error { return a.reader().Err() }

// Len is the number of bytes that are left; 0 after an error.
func (a *Args) Len() int { return a.reader().Len() }

// Uint32 takes an unsigned integer.
func (a *Args) Uint32() uint32 { return a.reader().Uint32() }

// Uint64 takes an unsigned hyper integer.
func (a *Args) Uint64() uint64 { return a.reader().Uint64() }

// Bool takes a boolean.
func (a *Args) Bool() bool { return a.reader().Bool() }

// Count takes the number of items, or of bytes, that follow: at most limit.
func (a *Args) Count(limit uint32) int { return a.reader().Count(limit) }

// Fixed takes n bytes of opaque data and their padding.
func (a *Args) Fixed(n int) []byte { return a.reader().Fixed(n) }

// Opaque takes opaque data of at most limit bytes, with its length and padding. Call.Data takes bulk data.
func (a *Args) Opaque(limit int) []byte { return a.reader().Opaque(limit) }

// String takes a string of at most limit bytes.
func (a *Args) String(limit int) string { return a.reader().String(limit) }

// Rest takes all that is left.
func (a *Args) Rest() []byte { return a.reader().Rest() }

// AppendOpaque appends opaque data to a result: its length, the data and the padding (RFC 4506 section 4.10). Bulk data goes by Sink instead.
func AppendOpaque(b, v []byte) []byte { return xdr.AppendOpaque(b, v) }

// AppendString is AppendOpaque for a string (RFC 4506 section 4.11).
func AppendString(b []byte, v string) []byte { return xdr.AppendString(b, v) }
