package iscsi

import (
	"encoding/binary"
	"hash/crc32"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// DigestLen is the length of a header or data digest in bytes.
const DigestLen = 4

// Digest returns the CRC32C over the parts, padding included by the caller (RFC 7143 section 13.1).
func Digest(parts ...[]byte) uint32 {
	var c uint32
	for _, p := range parts {
		c = crc32.Update(c, castagnoli, p)
	}
	return c
}

// DigestUpdate continues a CRC32C that began as 0.
func DigestUpdate(c uint32, p []byte) uint32 { return crc32.Update(c, castagnoli, p) }

// PutDigest writes a digest: the first byte on the wire is the least significant one of the reflected CRC.
func PutDigest(b []byte, c uint32) { binary.LittleEndian.PutUint32(b, c) }

// ReadDigest reads what PutDigest wrote.
func ReadDigest(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
