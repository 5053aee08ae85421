// Package oncrpc is the message layer of ONC RPC version 2 (RFC 5531): call and reply headers, the AUTH_NONE and AUTH_SYS
// flavors and the record marks of stream transports. It knows no transport.
package oncrpc

import (
	"fmt"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// Version is the only version of the RPC protocol (RFC 5531 section 9).
const Version = 2

// Message types (RFC 5531 section 9).
const (
	MsgCall  = 0
	MsgReply = 1
)

// AcceptStat is the outcome of a call whose header was accepted.
type AcceptStat uint32

// The accept_stat values (RFC 5531 section 9).
const (
	Success      AcceptStat = 0
	ProgUnavail  AcceptStat = 1
	ProgMismatch AcceptStat = 2
	ProcUnavail  AcceptStat = 3
	GarbageArgs  AcceptStat = 4
	SystemErr    AcceptStat = 5
)

func (s AcceptStat) String() string {
	names := [...]string{"SUCCESS", "PROG_UNAVAIL", "PROG_MISMATCH", "PROC_UNAVAIL", "GARBAGE_ARGS", "SYSTEM_ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("accept_stat %d", uint32(s))
}

// AuthStat says why a credential or verifier was refused.
type AuthStat uint32

// The auth_stat values this side gives or explains (RFC 5531 section 9).
const (
	AuthOK           AuthStat = 0
	AuthBadCred      AuthStat = 1
	AuthRejectedCred AuthStat = 2
	AuthBadVerf      AuthStat = 3
	AuthTooWeak      AuthStat = 5
)

// Flavors of authentication (RFC 5531 section 8.2).
const (
	AuthNone  = 0
	AuthSys   = 1
	AuthShort = 2
)

// Procedures and results of the protocol's own making.
const (
	statAccepted    = 0
	statDenied      = 1
	rejectMismatch  = 0
	rejectAuthError = 1
	maxAcceptStat   = 5
)

// Auth is an opaque_auth: flavor and body (RFC 5531 section 8.2). Body aliases what was parsed.
type Auth struct {
	Flavor uint32
	Body   []byte
}

// Append appends the opaque_auth.
func (a Auth) Append(b []byte) []byte { return xdr.AppendOpaque(xdr.AppendUint32(b, a.Flavor), a.Body) }

func parseAuth(r *xdr.Reader) Auth { return Auth{Flavor: r.Uint32(), Body: r.Opaque(MaxAuth)} }

// Call is a call's header.
type Call struct {
	XID              uint32
	Prog, Vers, Proc uint32
	Cred, Verf       Auth
}

// Append appends the header; the arguments follow.
func (c *Call) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, c.XID)
	b = xdr.AppendUint32(b, MsgCall)
	b = xdr.AppendUint32(b, Version)
	b = xdr.AppendUint32(b, c.Prog)
	b = xdr.AppendUint32(b, c.Vers)
	b = xdr.AppendUint32(b, c.Proc)
	return c.Verf.Append(c.Cred.Append(b))
}

// VersionError is Parse's answer to a call of another RPC version, which deserves RPC_MISMATCH.
type VersionError struct{ Version uint32 }

func (e *VersionError) Error() string {
	return fmt.Sprintf("rpc: the caller speaks RPC version %d; only 2 exists (RFC 5531 section 9)", e.Version)
}

// Parse takes a call header from r and leaves r at the arguments. XID is valid in a *VersionError too.
func (c *Call) Parse(r *xdr.Reader) error {
	c.XID = r.Uint32()
	if t := r.Uint32(); t != MsgCall && r.Err() == nil {
		r.Fail(&xdr.ValueError{What: "msg_type of a call", Value: t})
	}
	if v := r.Uint32(); v != Version && r.Err() == nil {
		r.Fail(&VersionError{Version: v})
	}
	c.Prog, c.Vers, c.Proc = r.Uint32(), r.Uint32(), r.Uint32()
	c.Cred = parseAuth(r)
	c.Verf = parseAuth(r)
	return r.Err()
}

// AppendReply appends the header of an accepted reply with an AUTH_NONE verifier; results follow a Success.
func AppendReply(b []byte, xid uint32, s AcceptStat) []byte {
	b = xdr.AppendUint32(b, xid)
	b = xdr.AppendUint32(b, MsgReply)
	b = xdr.AppendUint32(b, statAccepted)
	b = xdr.AppendUint64(b, 0) // verifier: AUTH_NONE, length 0
	return xdr.AppendUint32(b, uint32(s))
}

// ReplyLen is the length in bytes of what AppendReply appends.
const ReplyLen = 24

// AppendMismatch appends a PROG_MISMATCH reply.
func AppendMismatch(b []byte, xid, low, high uint32) []byte {
	b = AppendReply(b, xid, ProgMismatch)
	return xdr.AppendUint32(xdr.AppendUint32(b, low), high)
}

// AppendVersionMismatch appends the denial of a call of another RPC version.
func AppendVersionMismatch(b []byte, xid uint32) []byte {
	for _, v := range [...]uint32{xid, MsgReply, statDenied, rejectMismatch, Version, Version} {
		b = xdr.AppendUint32(b, v)
	}
	return b
}

// AppendAuthError appends the denial of a call for its credential.
func AppendAuthError(b []byte, xid uint32, s AuthStat) []byte {
	for _, v := range [...]uint32{xid, MsgReply, statDenied, rejectAuthError, uint32(s)} {
		b = xdr.AppendUint32(b, v)
	}
	return b
}

// ReplyError is a call that the server did not execute successfully: accepted and failed, or denied.
type ReplyError struct {
	Accept    AcceptStat // not Success, unless Denied
	Denied    bool
	Auth      AuthStat // with Denied: not AuthOK for an authentication error; AuthOK for a version mismatch
	Low, High uint32   // versions, with ProgMismatch or a version mismatch
}

func (e *ReplyError) Error() string {
	switch {
	case e.Denied && e.Auth != AuthOK:
		return fmt.Sprintf("rpc: the server refused the credential (auth_stat %d); is this client or user allowed there?", uint32(e.Auth))
	case e.Denied:
		return fmt.Sprintf("rpc: the server speaks RPC versions %d to %d, not 2", e.Low, e.High)
	case e.Accept == ProgMismatch:
		return fmt.Sprintf("rpc: the server has versions %d to %d of the program (PROG_MISMATCH)", e.Low, e.High)
	}
	return "rpc: the server answered " + e.Accept.String()
}

// Is compares what kind of refusal it is, not the version numbers.
func (e *ReplyError) Is(target error) bool {
	t, ok := target.(*ReplyError)
	return ok && t.Accept == e.Accept && t.Denied == e.Denied && t.Auth == e.Auth
}

// ParseReply takes a reply header from r and leaves r at the results. A refusal is a *ReplyError; another error means
// that the message is no reply at all.
func ParseReply(r *xdr.Reader) (xid uint32, err error) {
	xid = r.Uint32()
	if t := r.Uint32(); t != MsgReply && r.Err() == nil {
		r.Fail(&xdr.ValueError{What: "msg_type of a reply", Value: t})
	}
	switch r.Enum("reply_stat", statDenied) {
	case statAccepted:
		parseAuth(r)
		e := ReplyError{Accept: AcceptStat(r.Enum("accept_stat", maxAcceptStat))}
		if e.Accept == ProgMismatch {
			e.Low, e.High = r.Uint32(), r.Uint32()
		}
		if r.Err() == nil && e.Accept != Success {
			return xid, &e
		}
	case statDenied:
		e := ReplyError{Denied: true}
		if r.Enum("reject_stat", rejectAuthError) == rejectMismatch {
			e.Low, e.High = r.Uint32(), r.Uint32()
		} else {
			e.Auth = AuthStat(r.Uint32())
		}
		if r.Err() == nil {
			return xid, &e
		}
	}
	return xid, r.Err()
}
