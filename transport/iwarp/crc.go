package iwarp

import "hash/crc32"

// castagnoli is the polynomial of RFC 5044 section 4.4; hash/crc32 uses the processor's instruction for it.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func crcAdd(crc uint32, b []byte) uint32 { return crc32.Update(crc, castagnoli, b) }
