// Package failonce has each call that the daemon makes to its medium fail once: every standard piece of work is done once
// to count its calls, and then again for each of them, with that call answering an error or hanging. The medium is a file
// system beneath the kernel (test/lib/faultfs), the daemon is the program as it ships, and the judge is what a daemon that is
// started after a power cut has on its medium.
package failonce
