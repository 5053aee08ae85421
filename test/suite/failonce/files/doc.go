// Package files has each call that the daemon makes to the medium of an export fail once, for each procedure of NFS, MOUNT,
// NLM and NFSACL, and for programs that use them: package failonce, for files. What is on the medium afterwards is seen
// beneath the file system that fails.
package files
