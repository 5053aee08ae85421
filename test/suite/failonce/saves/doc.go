// Package saves has each call fail once that the daemon makes to its state directory while it writes down a change. What was answered as done
// is there after the daemon was killed, what was refused has no effect, before and after; the state is whole either way, and
// the daemon's health is told throughout.
package saves
