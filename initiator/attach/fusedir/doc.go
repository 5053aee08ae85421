// Package fusedir shows a directory of an NFS server as a directory here, by FUSE: for machines, containers and users
// that cannot mount NFS themselves. It needs /dev/fuse and, for an ordinary user, fusermount3.
//
// # What holds
//
//   - Files are known by their handles, so that open files survive renames by any client. A file that is removed here while
//     it is open here gets a hidden name (.nfs...) until its last close, as NFS clients do; NFS version 3 knows no open
//     files.
//   - Close-to-open consistency: open asks the server for the attributes, and cached data are used only if they are of
//     that state of the file; close returns when everything written is on the server's medium. Beyond that, attributes and
//     names may be as old as Options.AttrTimeout and Options.EntryTimeout.
//   - Writes go to the server at once, unstably; fsync and close commit them. What the server forgets by a restart in
//     between is sent again, in order.
//   - Locks, of fcntl and flock, are the server's where its lock manager answers; otherwise they hold on this machine only.
//     Mounted.Locks says which.
//   - Calls carry the identity of the process that makes them, with 16 groups at most, unless Options.Fixed says to use the
//     one of the URL. The server decides; the kernel decides too, by mode bits, where several users share a mount.
//   - A server that is away is waited for, for ever or for Options.Limit, and then EIO. A process that waits can be killed.
//   - There are no extended attributes, no fallocate and no RENAME_NOREPLACE in NFS version 3: EOPNOTSUPP and EINVAL.
package fusedir
