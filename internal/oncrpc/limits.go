package oncrpc

const (
	// MaxAuth bounds the body of a credential or verifier in bytes (RFC 5531 section 8.2).
	MaxAuth = 400
	// MaxMachine bounds the machine name of AUTH_SYS in bytes (RFC 5531 appendix A).
	MaxMachine = 255
	// MaxGroups bounds the supplementary groups of AUTH_SYS (RFC 5531 appendix A).
	MaxGroups = 16
	// MaxFragment is what the 31 bits of a record mark can say (RFC 5531 section 11).
	MaxFragment = 1<<31 - 1
)
