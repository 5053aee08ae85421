package nfs

import "github.com/sluice-storage/sluice/target/filesystem"

const (
	// MaxTransfer is rtmax and wtmax in bytes.
	MaxTransfer = filesystem.MaxTransfer
	// maxReaddir bounds the result of READDIR and READDIRPLUS in bytes; it fits the RPC layer's replies.
	maxReaddir = 64 << 10
	// maxMounts bounds the list that DUMP shows; it is only for people to read.
	maxMounts = 1024
)
