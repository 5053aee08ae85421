package filesystem

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/threads"
)

// identity is who a request is for, after squashing. It compares with ==.
type identity struct {
	uid, gid uint32
	n        int
	groups   [maxGroups]uint32
}

// identities changes the file system identity of the calling thread. Linux keeps it a thread, not a process; the raw
// system calls below bypass the C library's, and Go's, habit of changing all threads.
type identities struct {
	able   bool // the process may take any identity
	uid    uint32
	gid    uint32
	groups []uint32
	why    string // why not able

	// Ids that the process's user namespace maps; the kernel knows no others, and refuses them one way or another.
	uids, gids idMap

	// With CAP_SYS_RESOURCE a thread writes beyond quotas, and into what a file system keeps for root. An identity that
	// is not root's drops it; full and limited are the effective capabilities with and without.
	drops         bool
	full, limited [2]unix.CapUserData
}

const (
	capChown, capDacOverride, capDacReadSearch, capFowner, capSetgid, capSetuid, capSysResource = 0, 1, 2, 3, 6, 7, 24
)

func newIdentities() *identities {
	i := &identities{uid: uint32(os.Geteuid()), gid: uint32(os.Getegid()), uids: readIDMap("/proc/self/uid_map"), gids: readIDMap("/proc/self/gid_map")}
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
	_ = threads.OnDedicated(func() error {
		i.able = rawSetgroups(i.groups)
		return nil
	})
	if !i.able {
		i.why = "setgroups is forbidden here"
	}
	i.full, i.limited = data, data
	i.limited[0].Effective &^= 1 << capSysResource
	i.drops = i.limited != i.full
	return i
}

// own reports whether id needs no switch.
func (i *identities) own(id *identity) bool {
	return !i.able || id.uid == i.uid && id.gid == i.gid && id.n == 0
}

// as calls f with id's file system identity, and with the thread's own again whatever f does. The goroutine is locked to
// its thread in between, or f runs on another (apart). Identities that are the daemon's own, or cannot be another's, pass for
// free. An identity that the kernel refuses is EACCES: its ids mean nothing here.
func (i *identities) as(id *identity, f func() error) error {
	if i.apart(id) {
		who := *id // the caller's stays where it is
		return threads.OnDedicated(func() error { return i.here(&who, f) })
	}
	return i.here(id, f)
}

// with is as for what is called often. What as calls is on the heap, with all that it captures, for the sake of the thread of its own; here
// f captures nothing, a is what it needs, by value, and only that thread's copy of it is on the heap.
func with[A, R any](i *identities, id *identity, a A, f func(A) (R, error)) (R, error) {
	if i.apart(id) {
		return withApart(i, *id, a, f)
	}
	return withHere(i, id, a, f)
}

func withHere[A, R any](i *identities, id *identity, a A, f func(A) (R, error)) (R, error) {
	if i.own(id) {
		return f(a)
	}
	runtime.LockOSThread()
	defer i.leave()
	if !i.enter(id) {
		var none R
		return none, unix.EACCES
	}
	return f(a)
}

func withApart[A, R any](i *identities, id identity, a A, f func(A) (R, error)) (r R, err error) {
	err = threads.OnDedicated(func() (err error) {
		r, err = withHere(i, &id, a, f)
		return err
	})
	return r, err
}

// apart reports whether what is done as id has to be done on a thread of its own.
func (i *identities) apart(id *identity) bool { return threads.Apart() && !i.own(id) }

// here is as on this thread.
func (i *identities) here(id *identity, f func() error) error {
	if i.own(id) {
		return f()
	}
	runtime.LockOSThread()
	defer i.leave()
	if !i.enter(id) {
		return unix.EACCES
	}
	return f()
}

// enter gives the thread id's identity until leave, and reports whether the kernel took it.
func (i *identities) enter(id *identity) bool {
	if i.drops && id.uid != i.uid && !rawCapset(&i.limited) {
		return false
	}
	if !rawSetgroups(id.groups[:id.n]) {
		return false
	}
	rawSetfs(unix.SYS_SETFSGID, id.gid)
	rawSetfs(unix.SYS_SETFSUID, id.uid)
	// setfsuid reports nothing; asking with an impossible id reads the value back.
	return rawSetfs(unix.SYS_SETFSUID, ^uint32(0)) == id.uid && rawSetfs(unix.SYS_SETFSGID, ^uint32(0)) == id.gid
}

// leave ends what enter began. A thread with a wrong identity must serve no other caller: then the process ends.
func (i *identities) leave() {
	rawSetfs(unix.SYS_SETFSUID, i.uid)
	rawSetfs(unix.SYS_SETFSGID, i.gid)
	if !rawSetgroups(i.groups) || rawSetfs(unix.SYS_SETFSUID, ^uint32(0)) != i.uid || rawSetfs(unix.SYS_SETFSGID, ^uint32(0)) != i.gid ||
		i.drops && !rawCapset(&i.full) {
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

func rawCapset(c *[2]unix.CapUserData) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	_, _, e := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(c)), 0)
	return e == 0
}

// idMap is what of the ids a user namespace maps: first ids and counts. Nil maps all but 2^32-1, which is no id.
type idMap [][2]uint32

func readIDMap(path string) (m idMap) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for l := range strings.Lines(string(b)) {
		var inside, outside, n uint32
		if k, err := fmt.Sscan(l, &inside, &outside, &n); k != 3 || err != nil {
			return nil
		}
		m = append(m, [2]uint32{inside, n})
	}
	return m
}

func (m idMap) has(id uint32) bool {
	if id == ^uint32(0) {
		return false
	}
	for _, r := range m {
		if id >= r[0] && id-r[0] < r[1] {
			return true
		}
	}
	return m == nil
}

// admit makes an identity one that the kernel takes: ids that mean nothing in this user namespace are the anonymous
// user's, as with knfsd, and groups that mean nothing give no rights.
func (i *identities) admit(id *identity, anonUID, anonGID uint32) {
	if !i.uids.has(id.uid) || !i.gids.has(id.gid) {
		*id = identity{uid: anonUID, gid: anonGID}
		return
	}
	k := 0
	for _, g := range id.groups[:id.n] {
		if i.gids.has(g) {
			id.groups[k] = g
			k++
		}
	}
	clear(id.groups[k:id.n])
	id.n = k
}

// identityOf squashes a caller's credential.
func (e *Served) identityOf(cred *Credential, sq Squash) identity {
	anon := identity{uid: e.AnonUID, gid: e.AnonGID}
	if !cred.Known || sq == SquashAll {
		return anon
	}
	id := identity{uid: cred.UID, gid: cred.GID}
	id.n = copy(id.groups[:], cred.Groups)
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
		id = identity{gid: id.gid} // its other groups add nothing; what it makes is its group's
	}
	return id
}
