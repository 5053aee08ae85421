// Package gonfs lets a program that was written for github.com/vmware/go-nfs-client use this module's client, over TCP and over
// RDMA, by changing how it mounts. Its import of go-nfs-client/nfs becomes one of this package, and
//
//	mount, err := nfs.DialMount(host)
//	v, err := mount.Mount("/export", auth.Auth())
//
// becomes
//
//	v, err := gonfs.Open(ctx, "nfs+rdma://host/export", nfs.Options{})
//
// or stays as it is with DialMount("nfs+rdma://host"). Fattr, EntryPlus, FSInfo and Error are the very types of go-nfs-client, and
// errors compare as they do there: os.ErrNotExist, os.ErrExist and os.ErrPermission themselves, and an *Error for other statuses.
// No byte that a server sent is decoded by go-nfs-client.
//
// What differs: a connection that breaks is made again; Lookup has attributes of the mounted directory too; Readlink gives the
// target; Seek knows the end; io.Copy moves a megabyte at a time; a Target has no Call for RPC calls of a program's own, and NewTarget is missing.
// As there, what Write has returned for is durable.
package gonfs
