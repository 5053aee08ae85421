// Package ceph speaks to a Ceph cluster by Ceph's own libraries: librados for objects, locks, watches and the monitors' commands
// (rados.go), and librbd for images (image.go, ring.go).
//
// The libraries are opened when they are first needed, so that one binary serves with and without Ceph. The shim declares the part of their
// C interface that it calls itself (abi.h): that interface is kept from release to release under librados.so.2 and librbd.so.1, and the
// declarations spare the build everything but a C compiler. Binaries without the tag ceph, and machines without the libraries, say
// so in the error of Connect.
//
// # Threads
//
// The libraries have threads of their own, and call the shim back on them. No such call comes into Go. Watches and rings keep what
// they are told in C memory and signal an eventfd, which Go's poller has.
//
// # Waiting
//
// Calls block their goroutine, and a thread with it, for as long as the cluster takes. Options bound that: a monitor's answer by MonTimeout,
// an OSD's by OSDTimeout. An operation that was given up may have been done, or may still be: but before whatever the same instance asks
// of the same object later, because an OSD takes a client's operations on an object in their order.
package ceph
