// Package ceph has tests of a daemon that serves images of a real Ceph cluster (test/lib/cephkit): what an initiator sees of it, by bytes, and
// what Ceph's own programs see.
package ceph
