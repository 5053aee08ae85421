// Package nfs serves NFS version 3 and MOUNT version 3 (RFC 1813), and NFSACL version 3. What is served, and how it is reached, is the business of
// target/filesystem; this package is the layer of the version over it. Its programs take calls from target/rpcserver, over whatever transport.
//
//	program.go, arguments.go   classes of calls, their arguments parsed once
//	read.go .. readdir.go      the procedures: an Object is found, asked, and its answer encoded
//	convert.go                 plain attributes and errors, and what RFC 1813 makes of them
//
// Bulk data goes straight between the memory that the transport names and the file.
package nfs
