//go:build !race

// Package race tells a test whether the race detector is built in. It makes everything slower, allocates on its own account, and makes
// sync.Pool forget a part of what it is given, so that a count of allocations means nothing under it.
package race

// Enabled reports whether the race detector is built in.
const Enabled = false
