package rpcrdma

const (
	// MaxReadSegments bounds the read list: 1 MiB in pages of 4 KiB, and one for a pad.
	MaxReadSegments = 257
	// MaxWriteChunks bounds the write list. Linux sends one; a server has at most one result to place (RFC 8267).
	MaxWriteChunks = 4
	// MaxSegments bounds one write or reply chunk: 1 MiB in pages of 4 KiB, and one more.
	MaxSegments = 257
	// DefaultInline is the inline threshold in bytes, both ways, before either end said otherwise (RFC 8166 section 3.3.2).
	DefaultInline = 1024
	// MaxInline is the largest threshold the private message can name: 256 KiB (RFC 8797 section 5.1).
	MaxInline = 256 << 10
)
