// Package mount3 is the wire form of the MOUNT protocol version 3 (RFC 1813 section 5).
package mount3

import (
	"fmt"
	"io/fs"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// Program and version (RFC 1813 section 5.1).
const (
	Prog = 100005
	Vers = 3
)

// The procedures (RFC 1813 section 5.2).
const (
	ProcNull    = 0
	ProcMnt     = 1
	ProcDump    = 2
	ProcUmnt    = 3
	ProcUmntall = 4
	ProcExport  = 5
)

const (
	// MaxPath is MNTPATHLEN, bytes (RFC 1813 section 5.1.1).
	MaxPath = 1024
	// MaxName is MNTNAMLEN, bytes.
	MaxName = 255
	// MaxFH is FHSIZE3, bytes.
	MaxFH = 64
	// MaxFlavors bounds the authentication flavors of a MNT result; servers name fewer than ten.
	MaxFlavors = 64
	// MaxList bounds the items of a DUMP or EXPORT result that a client takes.
	MaxList = 4096
)

// Status is a mountstat3 (RFC 1813 section 5.1.5).
type Status uint32

// The status values.
const (
	OK             Status = 0
	ErrPerm        Status = 1
	ErrNoent       Status = 2
	ErrIO          Status = 5
	ErrAcces       Status = 13
	ErrNotdir      Status = 20
	ErrInval       Status = 22
	ErrNametoolong Status = 63
	ErrNotsupp     Status = 10004
	ErrServerfault Status = 10006
)

func (s Status) Error() string {
	switch s {
	case ErrNoent:
		return "mount: the server exports no such directory"
	case ErrAcces, ErrPerm:
		return "mount: the server does not allow this client; see its export's client rules and its secure-port rule"
	case ErrNotdir:
		return "mount: not a directory"
	}
	return fmt.Sprintf("mount: the server answered status %d", uint32(s))
}

// Is matches the fs sentinels.
func (s Status) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return s == ErrNoent
	case fs.ErrPermission:
		return s == ErrAcces || s == ErrPerm
	}
	return false
}

// PathArgs are the arguments of MNT and UMNT.
type PathArgs struct{ Path []byte }

// Append appends the arguments.
func (a *PathArgs) Append(b []byte) []byte { return xdr.AppendOpaque(b, a.Path) }

// Parse takes the arguments from r.
func (a *PathArgs) Parse(r *xdr.Reader) { a.Path = r.Opaque(MaxPath) }

// MntRes is the result of MNT.
type MntRes struct {
	Status  Status
	FH      []byte
	Flavors []uint32
}

// Append appends the result.
func (s *MntRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(s.Status))
	if s.Status != OK {
		return b
	}
	b = xdr.AppendUint32(xdr.AppendOpaque(b, s.FH), uint32(len(s.Flavors)))
	for _, f := range s.Flavors {
		b = xdr.AppendUint32(b, f)
	}
	return b
}

// Parse takes the result from r.
func (s *MntRes) Parse(r *xdr.Reader) {
	*s = MntRes{Status: Status(r.Uint32())}
	if s.Status != OK {
		return
	}
	s.FH = r.Opaque(MaxFH)
	for n := r.Count(MaxFlavors); n > 0 && r.Err() == nil; n-- {
		s.Flavors = append(s.Flavors, r.Uint32())
	}
}

// Mounted is one item of DUMP.
type Mounted struct{ Host, Dir string }

// AppendDump appends the result of DUMP.
func AppendDump(b []byte, l []Mounted) []byte {
	for _, m := range l {
		b = xdr.AppendString(xdr.AppendString(xdr.AppendBool(b, true), m.Host), m.Dir)
	}
	return xdr.AppendBool(b, false)
}

// ParseDump takes the result of DUMP from r.
func ParseDump(r *xdr.Reader) (l []Mounted) {
	for r.Bool() {
		if len(l) == MaxList {
			r.Fail(&xdr.LimitError{Len: MaxList + 1, Max: MaxList})
			return nil
		}
		l = append(l, Mounted{Host: r.String(MaxName), Dir: r.String(MaxPath)})
	}
	return l
}

// Export is one item of EXPORT: a directory and who may mount it; no groups mean everyone.
type Export struct {
	Dir    string
	Groups []string
}

// AppendExports appends the result of EXPORT.
func AppendExports(b []byte, l []Export) []byte {
	for _, e := range l {
		b = xdr.AppendString(xdr.AppendBool(b, true), e.Dir)
		for _, g := range e.Groups {
			b = xdr.AppendString(xdr.AppendBool(b, true), g)
		}
		b = xdr.AppendBool(b, false)
	}
	return xdr.AppendBool(b, false)
}

// ParseExports takes the result of EXPORT from r.
func ParseExports(r *xdr.Reader) (l []Export) {
	n := 0
	for r.Bool() {
		e := Export{Dir: r.String(MaxPath)}
		for r.Bool() {
			e.Groups = append(e.Groups, r.String(MaxName))
			n++
			if n > MaxList {
				break
			}
		}
		l = append(l, e)
		if n++; n > MaxList {
			r.Fail(&xdr.LimitError{Len: uint32(n), Max: MaxList})
			return nil
		}
	}
	return l
}
