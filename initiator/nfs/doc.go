// Package nfs is an NFS version 3 client (RFC 1813) over RPC-over-RDMA and over TCP. Mount takes an nfs:// URL; the FS
// it returns is an fs.FS, and does what a local file system does: directories, links, attributes, and files with
// ReadAt, WriteAt, Sync and Truncate. Everything may be called by any goroutine, and calls go out side by side.
//
// A server that goes away is waited for, as long as the context lets it. What was written and not synced is kept here
// until the server says that it is on its medium, and is sent again when the server's write verifier shows that it
// forgot (RFC 1813 section 4.8): what Sync has returned for is not lost.
//
//	v, name, err := nfs.Mount(ctx, "nfs://server/export/dir", nfs.Options{})
//	data, err := fs.ReadFile(v, name+"/file")
package nfs
