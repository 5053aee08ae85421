package oncrpc

import "github.com/sluice-storage/sluice/internal/xdr"

// Sys is an AUTH_SYS credential (RFC 5531 appendix A), held without pointers so that it can be compared and copied.
type Sys struct {
	UID, GID uint32
	NGroups  int
	Groups   [MaxGroups]uint32
}

// Append appends the body of an AUTH_SYS opaque_auth.
func (s *Sys) Append(b []byte, stamp uint32, machine string) []byte {
	b = xdr.AppendUint32(b, stamp)
	b = xdr.AppendString(b, machine)
	b = xdr.AppendUint32(b, s.UID)
	b = xdr.AppendUint32(b, s.GID)
	b = xdr.AppendUint32(b, uint32(s.NGroups))
	for _, g := range s.Groups[:s.NGroups] {
		b = xdr.AppendUint32(b, g)
	}
	return b
}

// Parse reads the body of an AUTH_SYS credential. Unused places of Groups are zero.
func (s *Sys) Parse(body []byte) error {
	r := xdr.NewReader(body)
	*s = Sys{}
	r.Uint32() // stamp: arbitrary
	r.Opaque(MaxMachine)
	s.UID, s.GID = r.Uint32(), r.Uint32()
	s.NGroups = r.Count(MaxGroups)
	for i := 0; i < s.NGroups; i++ {
		s.Groups[i] = r.Uint32()
	}
	if err := r.Err(); err != nil {
		s.NGroups = 0
		return err
	}
	return nil
}
