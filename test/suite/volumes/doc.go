// Package volumes has end-to-end tests of what a volume is: its size, its identity, its file, and what administrative
// commands, edited files, restarts and SIGKILL do to them. A real sluiced serves, the sluice binary commands, and
// libiscsi's tools and the bytes on the disk judge.
package volumes
