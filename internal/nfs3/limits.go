package nfs3

const (
	// MaxFH is NFS3_FHSIZE, the longest file handle in bytes (RFC 1813 section 2.4).
	MaxFH = 64
	// VerfLen is the length of cookie, create and write verifiers in bytes (RFC 1813 section 2.4).
	VerfLen = 8
	// MaxName bounds a file name in bytes as it is parsed. RFC 1813 has no bound; a longer name than 255 must still be
	// decoded to be answered NFS3ERR_NAMETOOLONG.
	MaxName = 4096
	// MaxPath bounds a symbolic link's target in bytes: Linux's PATH_MAX.
	MaxPath = 4096
)
