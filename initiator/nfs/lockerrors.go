package nfs

import (
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/internal/nlm4"
)

// Errors of locks.
var (
	// ErrNoLocks says that the server has no lock manager that we can reach.
	ErrNoLocks = errors.New("nfs: the server's lock manager (NLM) cannot be reached")
	// ErrLocked says that another owner holds a lock in the range.
	ErrLocked = errors.New("nfs: locked by another owner")
)

// LockStat is an answer of the lock manager (nlm4_stats, RFC 1813 appendix II).
type LockStat uint32

// The refusals of the lock manager.
const (
	LockNoRoom   LockStat = 2 // NLM4_DENIED_NOLOCKS
	LockGrace    LockStat = 4 // NLM4_DENIED_GRACE_PERIOD
	LockDeadlock LockStat = 5 // NLM4_DEADLCK
	LockReadOnly LockStat = 6 // NLM4_ROFS
	LockStale    LockStat = 7 // NLM4_STALE_FH
	LockTooLarge LockStat = 8 // NLM4_FBIG
	LockFailed   LockStat = 9 // NLM4_FAILED
)

func lockError(s nlm4.Stat) *LockError { return &LockError{LockStat(s)} }

// LockError is a refusal of the lock manager other than ErrLocked.
type LockError struct{ Stat LockStat }

func (e *LockError) Error() string {
	switch e.Stat {
	case LockNoRoom:
		return "nfs: the lock manager has no room for more locks"
	case LockGrace:
		return "nfs: the lock manager has just started and waits for its clients of before"
	case LockDeadlock:
		return "nfs: the lock would be a deadlock"
	case LockReadOnly:
		return "nfs: no exclusive locks on a read-only export"
	case LockStale:
		return "nfs: the lock manager does not know the file any more"
	case LockTooLarge:
		return "nfs: the lock's range is too large"
	}
	return fmt.Sprintf("nfs: the lock manager answers %d", e.Stat)
}
