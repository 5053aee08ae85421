package fusedir

import "time"

const (
	// maxWrite is what the kernel sends in one request, bytes; NFS sends no more in one call.
	maxWrite = 1 << 20
	// defaultTimeout is how long names and attributes are taken as they were: what FUSE file systems commonly use, less
	// than the 3 to 60 s of kernel NFS clients.
	defaultTimeout = time.Second
	// watchAfter is when a call that has no answer is looked at, and how often then: is its process being killed, is the
	// limit over. Calls that are answered sooner cost one timer.
	watchAfter = time.Second
	// jukeboxPause is how long a server that says "try later" is left alone (RFC 1813 section 2.6).
	jukeboxPause = time.Second
	// maxBackground is how many requests the kernel may have under way ahead of readers: enough for the read-ahead of
	// several files over a fabric.
	maxBackground = 64
)
