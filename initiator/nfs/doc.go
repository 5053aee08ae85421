// Package nfs is an NFS version 3 client (RFC 1813) over RPC-over-RDMA and over TCP, for programs that import it.
//
// # Opening
//
// Open takes an nfs:// or nfs+rdma:// URL, and makes what RDMA goes through: software iWARP, or the adapters of this machine with
// ?provider=verbs. The FS that it returns is an fs.FS with the methods that package os has for changes. Close it.
//
//	fsys, err := nfs.Open(ctx, "nfs+rdma://server/export", nfs.Options{})
//	data, err := fs.ReadFile(fsys, "dir/file")
//
// Everything may be called by any goroutine, and calls go out side by side. A server that goes away is waited for: a method that
// takes a context gives up when the context ends, the others when the FS is closed.
//
// # What is durable
//
// What was written is durable when File.Sync or File.Close has returned without an error, or WriteFile. Until then it is kept here
// too, and is sent again when the server's write verifier shows that the server forgot it (RFC 1813 section 4.8). Changes of names
// and attributes are durable when their method has returned, on a server that keeps to RFC 1813 section 4.8.
//
// # Errors
//
// A refusal of the server is a Status in an *Error in an *fs.PathError:
//
//	errors.Is(err, fs.ErrNotExist)  // also ErrExist, ErrPermission, ErrInvalid
//	errors.Is(err, nfs.ErrNoSpace)  // also ErrStale, ErrQuota, ErrReadOnly and all other statuses
//	var e *nfs.Error                // operation, path and status
//	errors.As(err, &e)
//
// A refusal to mount is a *MountError. A call that the server's RPC layer refused is an *RPCError, and matches ErrCredential where it
// was for the credential. Other errors are those of the network or of the context. NFS3ERR_JUKEBOX is waited out, and seen only when
// a context ends meanwhile.
//
// # Log
//
// Options.Log takes any slog.Handler by slog.New; a zap.Logger's core becomes one by zapslog.NewHandler of go.uber.org/zap/exp.
//
// # By handle
//
// A Caller works by file handles and under identities of other users, as a file system below a kernel does; Locks is the client of
// the server's lock manager. Package gonfs offers an FS in the words of github.com/vmware/go-nfs-client.
package nfs
