// Package captures replays what stock Linux kernels said to one another against our halves, each in the place of one
// of theirs. testdata holds the captures: ib_iser over siw to LIO, and the kernel's NFS client over siw to knfsd, both of
// Linux 6.1.
package captures
