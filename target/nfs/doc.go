// Package nfs serves directories by NFS version 3 and MOUNT version 3 (RFC 1813). Its procedure cores take decoded
// arguments and build results; calls come from target/rpcserver, over whatever transport, and bulk data goes straight between
// the memory that the transport names and the file.
//
// # How a file is reached
//
// A client holds handles. A handle is verified (handle.go), and stands for a node with a path descriptor (node.go). All
// names are single components, taken relative to a directory's descriptor, never followed when they are symbolic links
// and never across a mount; so there is no path of a client's making to escape with. What needs rights is done with the
// file system identity of the caller (identity.go), so that the kernel decides, access control lists included.
//
// # What is durable
//
// FILE_SYNC and DATA_SYNC writes and COMMIT answer after the kernel says that the data is on the medium. The write
// verifier is new with every start, and changes when writeback fails: then clients send again what they had not
// committed. Exports that are not Async answer changes of names and attributes after the directory is on the medium too.
package nfs
