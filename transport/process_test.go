package transport

import (
	"net"
	"testing"
)

func TestAProcessMayActAsItself(t *testing.T) {
	root, user := &Process{}, &Process{UID: 1000, GID: 100, Groups: []uint32{7, 8}}
	for _, c := range []struct {
		who      *Process
		uid, gid uint32
		may      bool
	}{{root, 0, 0, true}, {root, 5, 6, true}, {user, 1000, 100, true}, {user, 1000, 8, true}, {user, 1000, 9, false}, {user, 1000, 0, false}, {user, 0, 100, false}, {user, 1001, 100, false}} {
		if got := c.who.May(c.uid, c.gid); got != c.may {
			t.Errorf("%+v as %d and %d: %t", c.who, c.uid, c.gid, got)
		}
	}
	if ProcessOf(&net.TCPAddr{}) != nil || ProcessOf(nil) != nil {
		t.Error("a process at an address of another host")
	}
}
