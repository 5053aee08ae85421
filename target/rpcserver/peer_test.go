package rpcserver

import (
	"net/netip"
	"testing"

	"github.com/sluice-storage/sluice/transport"
)

// A process of this host is who the kernel says, not who it says; others are believed, as AUTH_SYS has it.
func TestAProcessOfThisHostCallsAsItself(t *testing.T) {
	sys := func(uid, gid uint32, groups ...uint32) *Sys {
		s := &Sys{UID: uid, GID: gid, NGroups: len(groups)}
		copy(s.Groups[:], groups)
		return s
	}
	far := &Peer{RDMA: true, Addr: netip.MustParseAddrPort("192.0.2.1:0")}
	root := &Peer{RDMA: true, process: &transport.Process{}}
	user := &Peer{RDMA: true, process: &transport.Process{UID: 1000, GID: 100, Groups: []uint32{7}}}
	for _, c := range []struct {
		what string
		peer *Peer
		as   *Sys
		may  bool
	}{
		{"another host's, as root", far, sys(0, 0), true},
		{"root as anybody", root, sys(1000, 100, 5), true},
		{"a user as itself", user, sys(1000, 100, 7), true},
		{"a user with its other group", user, sys(1000, 7), true},
		{"a user as root", user, sys(0, 0), false},
		{"a user as another", user, sys(1001, 100), false},
		{"a user in another group", user, sys(1000, 0), false},
		{"a user with a group that it is not in", user, sys(1000, 100, 7, 0), false},
	} {
		if got := c.peer.mayBe(c.as); got != c.may {
			t.Errorf("%s: %t", c.what, got)
		}
	}
	if !far.Privileged() || !root.Privileged() || user.Privileged() {
		t.Errorf("privileged: another host's %t, root's %t, a user's %t", far.Privileged(), root.Privileged(), user.Privileged())
	}
}
