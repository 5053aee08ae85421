package file

import "time"

// Identity is what the redo log is bound to.
func Identity(d *Device) string { return d.id }

// Patience is how long Settle waits for its last step, until back is called.
func Patience(d time.Duration) (back func()) {
	old := commitPatience
	commitPatience = d
	return func() { commitPatience = old }
}
