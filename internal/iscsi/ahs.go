package iscsi

import "encoding/binary"

// AHS types (RFC 7143 section 11.2.2.2).
const (
	ahsExtendedCDB = 1
	ahsBidiRead    = 2
)

// AHS is what the Additional Header Segments of a SCSI Command say.
type AHS struct {
	ExtCDB   []byte // bytes 16 and up of the CDB, in place
	HasBidi  bool
	BidiRead uint32 // Expected Bidirectional Read Data Length, bytes
}

// AppendExtendedCDB appends the segment that carries cdb[16:] (RFC 7143 section 11.2.2.3). cdb has 17 to 260 bytes.
func AppendExtendedCDB(b, cdb []byte) []byte {
	n := len(cdb) - 16
	b = binary.BigEndian.AppendUint16(b, uint16(n+1))
	b = append(b, ahsExtendedCDB, 0)
	b = append(b, cdb[16:]...)
	for range Pad(n) {
		b = append(b, 0)
	}
	return b
}

// AppendBidiRead appends the segment with the expected read length of a bidirectional command (section 11.2.2.4).
func AppendBidiRead(b []byte, n uint32) []byte {
	b = append(b, 0, 5, ahsBidiRead, 0)
	return binary.BigEndian.AppendUint32(b, n)
}

// Parse reads all segments of b, which is TotalAHSLength long.
func (a *AHS) Parse(b []byte) error {
	*a = AHS{}
	for len(b) > 0 {
		if len(b) < 4 {
			return broken("11.2.2", RejectField, "additional headers end within a segment's first four bytes")
		}
		// AHSLength counts the type-specific bytes, the byte after the type included (section 11.2.2.1).
		n := int(binary.BigEndian.Uint16(b))
		if n < 1 || 3+n > len(b) {
			return brokenf("11.2.2.1", RejectField, "an additional header of %d bytes lies in %d", n, len(b)-3)
		}
		body := b[4 : 3+n]
		switch b[2] & 0x3f {
		case ahsExtendedCDB:
			if a.ExtCDB != nil {
				return broken("11.2.2.3", RejectField, "two extended CDBs in one command")
			}
			if len(body) == 0 || len(body) > MaxCDBLen-16 {
				return brokenf("11.2.2.3", RejectField, "an extended CDB of %d bytes", len(body))
			}
			a.ExtCDB = body
		case ahsBidiRead:
			if a.HasBidi || len(body) != 4 {
				return broken("11.2.2.4", RejectField, "a bidirectional read length that is not one number of 4 bytes")
			}
			a.HasBidi, a.BidiRead = true, binary.BigEndian.Uint32(body)
		default:
			return brokenf("11.2.2.2", RejectField, "additional header of reserved type %d", b[2]&0x3f)
		}
		b = b[min(3+n+Pad(3+n), len(b)):]
	}
	return nil
}
