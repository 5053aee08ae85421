package iscsi

const (
	// MaxCDBLen bounds a CDB: 16 bytes in the header and what one byte of ADDITIONAL CDB LENGTH can add (SPC-4 4.2.3).
	MaxCDBLen = 260
	// MaxText bounds the text of one negotiation sequence, all continuation PDUs together: a login of 1024-byte CHAP
	// values and every key of the table is below 8 KiB.
	MaxText = 64 << 10
	// MaxKeys bounds the pairs of one sequence.
	MaxKeys = 256
	// MaxKeyName is RFC 7143 section 6.1: key names are up to 63 bytes.
	MaxKeyName = 63
	// MaxValue bounds a value. RFC 7143 section 6.1 gives 255 unless a key says otherwise; CHAP values may take 1024
	// bytes in hexadecimal, and lists of addresses are long.
	MaxValue = 8192
	// MaxName is RFC 7143 section 4.2.7.1: iSCSI names are up to 223 bytes.
	MaxName = 223
	// MaxBinary is RFC 7143 section 12.1.3: CHAP_C and CHAP_R are up to 1024 bytes.
	MaxBinary = 1024
	// DefaultRecvData is the MaxRecvDataSegmentLength of RFC 7143 section 13.12, in force during every login.
	DefaultRecvData = 8192
	// MaxLoginPDUs bounds the requests of one login, so that a peer cannot keep one open by saying nothing new.
	MaxLoginPDUs = 64
	// SafeISERData is the data segment that Linux and libiscsi have room for behind an iSER header after login,
	// whatever they negotiated.
	SafeISERData = 128
)
