package owner

import "time"

const (
	// BlockTime is how long the owner of a connection may be in one piece of work before another goroutine takes its place.
	BlockTime = time.Millisecond
	// MaxTogether bounds the work requests of replies that wait to be posted together.
	MaxTogether = 8
	// pollBatch is how many completions are handled at a time.
	pollBatch = 64
)
