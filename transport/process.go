package transport

import (
	"net"
	"slices"
)

// Process is who a peer on this host is, by the kernel's word (SO_PEERCRED and SO_PEERGROUPS in unix(7)).
type Process struct {
	PID      int // as this process sees it; 0 for one of a namespace that it does not see
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// May reports whether the process has the right to act as a user and a group: root may, others as themselves.
func (p *Process) May(uid, gid uint32) bool {
	return p.UID == 0 || uid == p.UID && p.In(gid)
}

// In reports whether the process is in a group.
func (p *Process) In(gid uint32) bool {
	return p.UID == 0 || gid == p.GID || slices.Contains(p.Groups, gid)
}

// ProcessAddr is the address of a peer that is a process of this host, for devices that have no other peers.
type ProcessAddr interface {
	net.Addr
	Process() *Process
}

// ProcessOf is who the peer at an address is, nil for one of another host or that nothing is known of.
func ProcessOf(a net.Addr) *Process {
	if p, is := a.(ProcessAddr); is {
		return p.Process()
	}
	return nil
}
