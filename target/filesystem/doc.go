// Package filesystem is what serves directories whatever protocol and version their clients speak: exports, handles, nodes, the identities of callers, and
// the operations. It takes and gives plain values (Attr, Change, Errno), and knows no wire format: target/nfs is a layer of codecs and rules over it.
//
// # How a file is reached
//
// A client holds handles. A handle is verified (handle.go), and stands for a node with a path descriptor (node.go). All
// names are single components, taken relative to a directory's descriptor, never followed when they are symbolic links
// and never across a mount; so there is no path of a client's making to escape with. What needs rights is done with the
// file system identity of the caller (identity.go), so that the kernel decides, access control lists included.
//
// An operation begins with Find, which makes an Object of a handle and a caller, and ends with the object's End.
//
//	var o filesystem.Object
//	if e := fs.Find(&caller, handle, &o); e == filesystem.OK {
//		defer o.End()
//		e = o.Stat(&attr)
//	}
//
// # What is durable
//
// Writes of DataSync and FileSync and Commit return after the kernel says that the data is on the medium. The write
// verifier is new with every start, and changes when writeback fails: then clients send again what they had not
// committed. Exports that are not Async have changes of names and attributes on the medium before the operation returns.
package filesystem
