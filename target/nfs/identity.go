package nfs

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/rpc"
)

// identity is who a request is for, after squashing. It compares with ==.
type identity struct {
	uid, gid uint32
	n        int
	groups   [rpc.MaxGroups]uint32
}

// identities changes the file system identity of the calling thread. Linux keeps it a thread, not a process; the raw
// system calls below bypass the C library's, and Go's, habit of changing all threads.
type identities struct {
	able   bool // the process may take any identity
	uid    uint32
	gid    uint32
	groups []uint32
	why    string // why not able
}

const (
	capChown, capDacOverride, capDacReadSearch, capFowner, capSetgid, capSetuid = 0, 1, 2, 3, 6, 7
)

func newIdentities() *identities {
	i := &identities{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	if g, err := os.Getgroups(); err == nil {
		for _, v := range g {
			i.groups = append(i.groups, uint32(v))
		}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		i.why = fmt.Sprintf("capabilities cannot be read: %v", err)
		return i
	}
	for _, c := range [...]uint{capChown, capDacOverride, capDacReadSearch, capFowner, capSetgid, capSetuid} {
		if data[0].Effective&(1<<c) == 0 {
			i.why = fmt.Sprintf("the daemon lacks capability %d", c)
			return i
		}
	}
	// The identity switch drops the file system capabilities only on the way from uid 0 (capabilities(7)).
	if i.uid != 0 {
		i.why = "the daemon does not run as root"
		return i
	}
	// Some user namespaces forbid setgroups; trying it with what is set already changes nothing.
	runtime.LockOSThread()
	i.able = rawSetgroups(i.groups)
	runtime.UnlockOSThread()
	if !i.able {
		i.why = "setgroups is forbidden here"
	}
	return i
}

// own reports whether id needs no switch.
func (i *identities) own(id *identity) bool {
	return !i.able || id.uid == i.uid && id.gid == i.gid && id.n == 0
}

// enter gives the thread id's identity until leave. The goroutine is locked to its thread in between. Those who are the
// daemon's own, or cannot be another, pass for free.
func (i *identities) enter(id *identity) (switched bool) {
	if i.own(id) {
		return false
	}
	runtime.LockOSThread()
	ok := rawSetgroups(id.groups[:id.n])
	rawSetfs(unix.SYS_SETFSGID, id.gid)
	rawSetfs(unix.SYS_SETFSUID, id.uid)
	// setfsuid reports nothing; asking with an impossible id reads the value back.
	if !ok || rawSetfs(unix.SYS_SETFSUID, ^uint32(0)) != id.uid || rawSetfs(unix.SYS_SETFSGID, ^uint32(0)) != id.gid {
		i.leave(true)
		panic("nfs: the thread's identity cannot be changed, though the daemon has the capabilities")
	}
	return true
}

// leave ends what enter began. A thread with a wrong identity must not serve anybody: then the process ends.
func (i *identities) leave(switched bool) {
	if !switched {
		return
	}
	rawSetfs(unix.SYS_SETFSUID, i.uid)
	rawSetfs(unix.SYS_SETFSGID, i.gid)
	if !rawSetgroups(i.groups) || rawSetfs(unix.SYS_SETFSUID, ^uint32(0)) != i.uid || rawSetfs(unix.SYS_SETFSGID, ^uint32(0)) != i.gid {
		go panic("nfs: a thread's identity cannot be restored") // not recovered there
		select {}
	}
	runtime.UnlockOSThread()
}

func rawSetfs(trap uintptr, id uint32) uint32 {
	old, _, _ := syscall.RawSyscall(trap, uintptr(id), 0, 0)
	return uint32(old)
}

func rawSetgroups(g []uint32) bool {
	var p unsafe.Pointer
	if len(g) > 0 {
		p = unsafe.Pointer(&g[0])
	}
	_, _, e := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(g)), uintptr(p), 0)
	return e == 0
}

// identityOf squashes a caller's credential.
func (e *export) identityOf(flavor uint32, sys *rpc.Sys, sq Squash) identity {
	anon := identity{uid: e.AnonUID, gid: e.AnonGID}
	if flavor != rpc.AuthSys || sq == SquashAll {
		return anon
	}
	id := identity{uid: sys.UID, gid: sys.GID, n: sys.NGroups, groups: sys.Groups}
	// An id of 2^32-1 is no user: setfsuid would take it for a question.
	if id.uid == ^uint32(0) || id.gid == ^uint32(0) {
		return anon
	}
	if sq == SquashRoot {
		if id.uid == 0 {
			return anon
		}
		if id.gid == 0 {
			id.gid = e.AnonGID
		}
		for k := range id.groups[:id.n] {
			if id.groups[k] == 0 {
				id.groups[k] = e.AnonGID
			}
		}
	}
	if id.uid == 0 {
		id = identity{} // root's groups add nothing
	}
	return id
}
