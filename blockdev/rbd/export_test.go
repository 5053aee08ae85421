package rbd

import "time"

// SetLockPatience changes how long Open asks for a lock, until undo.
func SetLockPatience(d time.Duration) (undo func()) {
	was := lockPatience
	lockPatience = d
	return func() { lockPatience = was }
}
