package rpcserver

import (
	"net/netip"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// unpace takes a connection within this host off a congestion control that paces. BBR takes a client that is busy with
// what it has received for a slow link, and sends at that rate from then on, with both ends idle in between; there is no
// link. Whatever else the host uses stays, and so does BBR where the kernel does not let us.
func unpace(raw syscall.RawConn, peer, local netip.AddrPort) {
	if !peer.Addr().IsLoopback() && peer.Addr() != local.Addr() {
		return
	}
	_ = raw.Control(func(fd uintptr) { // a connection that has just ended shows that to its reader
		if name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil && paces(name) {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") // in every kernel, without a privilege
		}
	})
}

// paces reports the congestion controls that send at a rate they have measured (draft-ietf-ccwg-bbr).
func paces(name string) bool { return strings.HasPrefix(name, "bbr") }
