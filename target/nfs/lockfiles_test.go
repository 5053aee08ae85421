package nfs_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/nfs/lock"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// startLocks is a file target with its lock manager.
func startLocks(t *testing.T, state string, exports ...nfs.Export) (*server, *lock.Manager) {
	t.Helper()
	s := &server{dir: exports[0].Dir}
	s.up(t, stand.FileOptions{NFS: nfs.Options{StateDir: state}, Locks: &lock.Options{StateDir: state}}, exports...)
	_, s.url = s.TCP("127.0.0.1:0")
	return s, s.Locks
}

func (r *raw) nlm(proc uint32, args []byte) nlm4.Stat {
	r.t.Helper()
	x, err := r.call(nlm4.Prog, nlm4.Vers, proc, args)
	must(r.t, err)
	var res nlm4.Res
	res.Parse(x)
	must(r.t, x.Err())
	return res.Stat
}

func (r *raw) lock(host string, fh []byte) nlm4.Stat {
	a := nlm4.LockArgs{Exclusive: true, Lock: nlm4.Lock{Caller: []byte(host), FH: fh, Owner: []byte("1@" + host), SVID: 1}}
	return r.nlm(nlm4.ProcLock, a.Append(nil))
}

func (r *raw) unlock(host string, fh []byte) nlm4.Stat {
	a := nlm4.UnlockArgs{Lock: nlm4.Lock{Caller: []byte(host), FH: fh, Owner: []byte("1@" + host), SVID: 1}}
	return r.nlm(nlm4.ProcUnlock, a.Append(nil))
}

// A lock is a file's, by whatever export its handle came.
func TestLocksHoldAcrossExports(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "sub", "f"), nil, 0o644))
	s, m := startLocks(t, "", nfs.Export{Path: "/data", Dir: dir, Rights: open}, nfs.Export{Path: "/sub", Dir: filepath.Join(dir, "sub"), Rights: open})
	r := s.raw(t, 0, 0)
	root, st := r.mount("/data")
	sub, st2 := r.mount("/sub")
	if st != mount3.OK || st2 != mount3.OK {
		t.Fatal(st, st2)
	}
	one, two := r.lookup(r.lookup(root, "sub").FH, "f").FH, r.lookup(sub, "f").FH
	if bytes.Equal(one, two) {
		t.Fatal("the handles are the same: no test")
	}
	if got := r.lock("a", one); got != nlm4.Granted {
		t.Fatal(got)
	}
	if got := r.lock("b", two); got != nlm4.Denied {
		t.Errorf("a second exclusive lock, by another export: %v", got)
	}
	if got := r.unlock("a", two); got != nlm4.Granted || m.Locks() != 0 {
		t.Errorf("unlocked by another export: %v, %d locks", got, m.Locks())
	}
}

// What is locked can be given back, also when the file has been removed or the client's rights to it have, and a later file
// in its place is another.
func TestLocksOfWhatIsGoneAreGivenBack(t *testing.T) {
	x := nfs.Export{Path: "/data", Dir: t.TempDir(), Rights: open}
	s, m := startLocks(t, "", x)
	path := filepath.Join(s.dir, "f")
	r := s.raw(t, 0, 0)
	for what, gone := range map[string]func(){
		"removed": func() { must(t, os.Remove(path)) },
		"without rights": func() {
			closed := x
			closed.Clients = []nfs.Client{{Match: "192.0.2.1"}}
			must(t, s.nfs.SetExports(closed))
		},
		"exported no longer": func() { must(t, s.nfs.SetExports()) },
	} {
		must(t, s.nfs.SetExports(x))
		must(t, os.WriteFile(path, nil, 0o644))
		root, _ := r.mount("/data")
		fh := r.lookup(root, "f").FH
		if got := r.lock("a", fh); got != nlm4.Granted {
			t.Fatal(got)
		}
		gone()
		if what == "removed" {
			must(t, s.nfs.SetExports()) // the server holds it open no longer
			must(t, s.nfs.SetExports(x))
			must(t, os.WriteFile(path, nil, 0o644))
			if got := r.lock("b", r.lookup(root, "f").FH); got != nlm4.Granted {
				t.Errorf("a file in the place of one that was locked: %v", got)
			}
			r.unlock("b", r.lookup(root, "f").FH)
		}
		if got := r.unlock("a", fh); got != nlm4.Granted || m.Locks() != 0 {
			t.Errorf("a file that is %s: %v, %d locks stay", what, got, m.Locks())
		}
	}
}

// FREE_ALL from a port that any user may have does not free what was locked from one that only root may use.
func TestFreeAllFromAnyPortFreesWhatWasLockedFromOne(t *testing.T) {
	need.Root(t)
	s, m := startLocks(t, "", nfs.Export{Path: "/data", Dir: t.TempDir(), Rights: open})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o644))
	must(t, os.WriteFile(filepath.Join(s.dir, "g"), nil, 0o644))
	root := s.raw(t, 0, 0)
	c := rpcclient.NewClient(rpcclient.Stream(func(context.Context) (net.Conn, error) { return net.Dial("tcp", s.hostPort(t)) }), rpcclient.Options{})
	t.Cleanup(func() { must(t, c.Close()) })
	user := &raw{t: t, c: c, cred: root.cred}
	dir, _ := root.mount("/data")
	f, g := root.lookup(dir, "f").FH, root.lookup(dir, "g").FH
	if root.lock("a", f) != nlm4.Granted || user.lock("a", g) != nlm4.Granted {
		t.Fatal("no locks")
	}
	free := func(r *raw) int {
		a := nlm4.FreeAllArgs{Name: []byte("a")}
		_, err := r.call(nlm4.Prog, nlm4.Vers, nlm4.ProcFreeAll, a.Append(nil))
		must(t, err)
		return m.Locks()
	}
	if n := free(user); n != 1 {
		t.Errorf("after FREE_ALL from a port of any user %d locks stay, not root's one", n)
	}
	if n := free(root); n != 0 {
		t.Errorf("after FREE_ALL from a port of root's %d locks stay", n)
	}
}

// What is answered on the strength of a state file is still so after the power fails: its content is on the disk, and the
// name that it is found by.
func TestStateFilesAreDurableWithTheirNames(t *testing.T) {
	d := newDisk(t, "mkfs.ext4", "-F", "-q")
	state := filepath.Join(d.dir, "state", "files")
	s, _ := startLocks(t, state, nfs.Export{Path: "/data", Dir: t.TempDir(), Rights: open})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o644))
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	fh := r.lookup(root, "f").FH
	key, err := os.ReadFile(filepath.Join(state, "nfs-handle.key"))
	must(t, err)
	for _, host := range []string{"one", "two"} {
		if got := r.lock(host, fh); got != nlm4.Granted {
			t.Fatal(got)
		}
		r.unlock(host, fh)
		after := d.powerCut()
		if b, err := os.ReadFile(filepath.Join(after, "state", "files", "nfs-handle.key")); err != nil || !bytes.Equal(b, key) {
			t.Errorf("the key of clients' handles: %d bytes, %v", len(b), err)
		}
		if b, err := os.ReadFile(filepath.Join(after, "state", "files", "nlm-state.json")); err != nil || !bytes.Contains(b, []byte(`"`+host+`"`)) {
			t.Errorf("the client that got a lock is not noted: %s, %v", b, err)
		}
	}
}

// What a client was told has changed is so after the power fails.
func TestAnsweredChangesSurviveAPowerCut(t *testing.T) {
	d := newDisk(t, "mkfs.ext4", "-F", "-q")
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Dir: d.dir})
	v := s.mount(t)
	must(t, v.Mkdir(t.Context(), "d", 0o755))
	f, err := v.Create(t.Context(), "d/f", 0o640)
	must(t, err)
	want := random(300_000, 4)
	_, err = f.WriteAt(want, 0)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	must(t, v.Rename(t.Context(), "d/f", "g"))
	must(t, v.Chmod(t.Context(), "g", 0o604))
	after := d.powerCut()
	var st unix.Stat_t
	must(t, unix.Stat(filepath.Join(after, "g"), &st))
	if b, err := os.ReadFile(filepath.Join(after, "g")); err != nil || !bytes.Equal(b, want) || st.Mode&0o777 != 0o604 {
		t.Errorf("%d bytes, mode %o, %v", len(b), st.Mode, err)
	}
	if l, err := os.ReadDir(filepath.Join(after, "d")); err != nil || len(l) != 0 {
		t.Errorf("%v, %v", l, err)
	}
}
