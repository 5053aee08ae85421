package filesystem

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/test/lib/need"
)

// who is the calling thread, and the user and group that it acts as.
type who struct{ tid, uid, gid int }

func look(base int) (who, error) {
	return who{unix.Gettid() - base, int(rawSetfs(unix.SYS_SETFSUID, ^uint32(0))), int(rawSetfs(unix.SYS_SETFSGID, ^uint32(0)))}, nil
}

// With an identity f runs as it, on this thread or on one apart, and this thread is the daemon's again afterwards.
func TestAnIdentityIsTakenHereOrOnAThreadApart(t *testing.T) {
	need.Root(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ids, here := newIdentities(), unix.Gettid()
	user := identity{uid: 1000, gid: 1001, n: 1, groups: [16]uint32{1002}}
	if got, err := withHere(ids, &user, here, look); err != nil || got != (who{0, 1000, 1001}) {
		t.Errorf("here: %+v, %v", got, err)
	}
	if got, err := withApart(ids, user, here, look); err != nil || got.tid == 0 || got.uid != 1000 || got.gid != 1001 {
		t.Errorf("apart: %+v, %v", got, err)
	}
	if got, err := with(ids, &identity{}, here, look); err != nil || got != (who{}) {
		t.Errorf("afterwards: %+v, %v", got, err)
	}
	fails := errors.New("what f says")
	for _, in := range []func(*identities, *identity, int, func(int) (int, error)) (int, error){withHere[int, int], with[int, int],
		func(i *identities, id *identity, a int, f func(int) (int, error)) (int, error) {
			return withApart(i, *id, a, f)
		}} {
		if n, err := in(ids, &user, 1, func(a int) (int, error) { return a + 1, fails }); n != 2 || !errors.Is(err, fails) {
			t.Errorf("%d, %v", n, err)
		}
	}
}
