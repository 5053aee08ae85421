package nfs_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/test/lib/need"
)

// of makes calls as a user who is in groups too.
func (s *server) of(t *testing.T, uid, gid uint32, groups ...uint32) *raw {
	r := s.raw(t, uid, gid)
	r.owner = int(uid)
	sys := oncrpc.Sys{UID: uid, GID: gid, NGroups: len(groups)}
	copy(sys.Groups[:], groups)
	r.cred.Body = sys.Append(nil, 1, "test")
	return r
}

// status makes a call and returns what its result begins with.
func (r *raw) status(prog, proc uint32, args []byte) nfs3.Status {
	r.t.Helper()
	x, err := r.call(prog, 3, proc, args)
	must(r.t, err)
	st := nfs3.Status(x.Uint32())
	must(r.t, x.Err())
	return st
}

// changes makes one call of each kind that changes something.
func (r *raw) changes(dir, file []byte, to string) map[string]nfs3.Status {
	r.t.Helper()
	at := func(name string) nfs3.DirOp { return nfs3.DirOp{Dir: dir, Name: []byte(name)} }
	nfs := func(p nfs3.Proc, args []byte) nfs3.Status { return r.status(nfs3.Prog, uint32(p), args) }
	set := nfs3.SetattrArgs{FH: file, Attr: nfs3.SetAttr{ModeSet: true, Mode: 0o666}}
	create := nfs3.CreateArgs{Where: at("new" + to)}
	mkdir := nfs3.MkdirArgs{Where: at("dir" + to)}
	link := nfs3.LinkArgs{FH: file, Link: at("link" + to)}
	rename := nfs3.RenameArgs{From: at("link" + to), To: at("moved" + to)}
	remove, rmdir := at("moved"+to), at("dir"+to)
	acl := nfs3.ACLArgs{Set: true, FH: file, Mask: nfs3.MaskACL, ACLs: nfs3.ACLs{AccessCnt: 3, Access: []nfs3.ACE{{Tag: nfs3.ACLUserObj, Perm: 6}, {Tag: nfs3.ACLGroupObj, Perm: 6}, {Tag: nfs3.ACLOther, Perm: 6}}}}
	m := map[string]nfs3.Status{
		"SETATTR": nfs(nfs3.ProcSetattr, set.Append(nil)),
		"CREATE":  nfs(nfs3.ProcCreate, create.Append(nil)),
		"MKDIR":   nfs(nfs3.ProcMkdir, mkdir.Append(nil)),
		"LINK":    nfs(nfs3.ProcLink, link.Append(nil)),
	}
	m["RENAME"] = nfs(nfs3.ProcRename, rename.Append(nil))
	m["REMOVE"] = nfs(nfs3.ProcRemove, remove.Append(nil))
	m["RMDIR"] = nfs(nfs3.ProcRmdir, rmdir.Append(nil))
	m["SETACL"] = r.status(nfs3.ACLProg, nfs3.ProcSetACL, acl.Append(nil))
	m["WRITE"] = r.write(file, 0, []byte("x"), nfs3.FileSync).Status
	return m
}

// strangers makes callers of odd ids change things, and then an ordinary one: whatever they are answered, they leave
// nothing locked.
func strangers(t *testing.T, s *server, ordinary *raw, odd map[string]*raw, want func(who string) nfs3.Status) {
	t.Helper()
	dir, st := ordinary.mount("/data")
	if st != mount3.OK {
		t.Fatal(st)
	}
	files := map[string][]byte{}
	for who := range odd {
		must(t, os.WriteFile(filepath.Join(s.dir, who), nil, 0o666))
		must(t, os.Chmod(filepath.Join(s.dir, who), 0o666))
		must(t, os.Chown(filepath.Join(s.dir, who), odd[who].owner, -1))
		files[who] = ordinary.lookup(dir, who).FH
	}
	for who, r := range odd {
		for what, st := range r.changes(dir, files[who], " by "+who) {
			if st != want(who) {
				t.Errorf("%s by %s: %v, not %v", what, who, st, want(who))
			}
		}
	}
	must(t, os.WriteFile(filepath.Join(s.dir, "mine"), nil, 0o666))
	must(t, os.Chown(filepath.Join(s.dir, "mine"), ordinary.owner, -1))
	for what, st := range ordinary.changes(dir, ordinary.lookup(dir, "mine").FH, "") {
		if st != nfs3.OK {
			t.Errorf("%s after them: %v", what, st)
		}
	}
}

// Ids that mean nothing to the kernel are the anonymous user's, or give no rights; they keep no other caller out.
func TestStrangeIdsAreAnsweredAndKeepNobodyOut(t *testing.T) {
	beOthers(t)
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
	if why := s.nfs.Squashed(); why != "" {
		t.Fatalf("root without the rights of root: %s", why)
	}
	must(t, os.Chmod(s.dir, 0o777))
	const none = ^uint32(0)
	odd := map[string]*raw{
		"a group that is none": s.of(t, 1000, 1000, none), "such a group among others": s.of(t, 1000, 1000, 5, none, 1001),
		"a user who is none": s.of(t, none, 1000), "a first group that is none": s.of(t, 1000, none),
	}
	odd["a user who is none"].owner, odd["a first group that is none"].owner = nfs.Nobody, nfs.Nobody
	ordinary := s.of(t, 1000, 1000)
	strangers(t, s, ordinary, odd, func(string) nfs3.Status { return nfs3.OK })
	// Its other groups count.
	must(t, os.WriteFile(filepath.Join(s.dir, "group's"), []byte("x"), 0o640))
	must(t, os.Chown(filepath.Join(s.dir, "group's"), 0, 1001))
	dir, _ := ordinary.mount("/data")
	a := nfs3.RangeArgs{FH: ordinary.lookup(dir, "group's").FH, Count: 1}
	if r, _ := odd["such a group among others"].read(&a); r.Status != nfs3.OK {
		t.Errorf("a member of a group, and of one that is none: %v", r.Status)
	}
	// To chown(2) 2^32-1 says that nothing is to change.
	set := nfs3.SetattrArgs{FH: a.FH, Attr: nfs3.SetAttr{UIDSet: true, UID: none}}
	if st := s.of(t, 0, 0).status(nfs3.Prog, uint32(nfs3.ProcSetattr), set.Append(nil)); st != nfs3.ErrInval {
		t.Errorf("a file is given to the user who is none: %v", st)
	}
}

// capable is storage that notes what the thread that writes could do.
type capable struct {
	forgetful
	effective atomic.Uint64
}

func (c *capable) Pwrite(fd int, bufs [][]byte, n int, off int64, sync filesystem.Stability) (int, error) {
	if b, err := os.ReadFile("/proc/thread-self/status"); err == nil {
		_, rest, _ := bytes.Cut(b, []byte("\nCapEff:\t"))
		if v, err := strconv.ParseUint(string(rest[:16]), 16, 64); err == nil {
			c.effective.Store(v)
		}
	}
	return c.forgetful.Pwrite(fd, bufs, n, off, sync)
}

// In a user namespace most ids mean nothing. The test's process is one in such a namespace, where it has all capabilities,
// whatever the machine leaves to root.
func TestStrangeIdsInAUserNamespace(t *testing.T) {
	const inside = "SLUICE_TEST_USER_NAMESPACE"
	if os.Getenv(inside) == "" {
		need.Root(t)
		cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1", "TMPDIR="+t.TempDir())
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1000, HostID: 1000, Size: 1000}}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	c := &capable{}
	s := start(t, "tcp", nfs.Options{Storage: c}, rpcserver.Options{}, nfs.Export{Rights: open, AnonUID: 1500, AnonGID: 1500})
	if why := s.nfs.Squashed(); why != "" {
		t.Fatal(why)
	}
	must(t, os.Chmod(s.dir, 0o777))
	odd := map[string]*raw{"a user from outside": s.of(t, 5000, 1000), "a group from outside": s.of(t, 1001, 1000, 5000, 1002), "a first group from outside": s.of(t, 1001, 5000)}
	odd["a user from outside"].owner, odd["a first group from outside"].owner = 1500, 1500
	ordinary := s.of(t, 1000, 1000)
	strangers(t, s, ordinary, odd, func(string) nfs3.Status { return nfs3.OK })

	// Quotas and what a file system keeps for root bind all but root.
	dir, _ := ordinary.mount("/data")
	fh := ordinary.lookup(dir, "mine").FH
	ordinary.write(fh, 0, []byte("x"), nfs3.FileSync)
	if got := c.effective.Load(); got&(1<<unix.CAP_SYS_RESOURCE|1<<unix.CAP_DAC_OVERRIDE|1<<unix.CAP_FOWNER) != 0 {
		t.Errorf("a user writes with the capabilities %#x", got)
	}
	s.of(t, 0, 1001).write(fh, 0, []byte("x"), nfs3.FileSync)
	if got := c.effective.Load(); got&(1<<unix.CAP_SYS_RESOURCE) == 0 || got&(1<<unix.CAP_DAC_OVERRIDE) == 0 {
		t.Errorf("root writes with the capabilities %#x: the test shows nothing", got)
	}

	// Where the anonymous user is from outside too, he may do nothing.
	s2 := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Dir: s.dir})
	odd = map[string]*raw{"a user without a place": s2.of(t, 5000, 5000)}
	odd["a user without a place"].owner = 1000
	ordinary = s2.of(t, 1000, 1000)
	strangers(t, s2, ordinary, odd, func(string) nfs3.Status { return nfs3.ErrAcces })
}

// What root makes belongs to the group that it makes it as, as everyone's does.
func TestRootKeepsItsGroup(t *testing.T) {
	beOthers(t)
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	r := s.of(t, 0, 1001)
	dir, _ := r.mount("/data")
	create := nfs3.CreateArgs{Where: nfs3.DirOp{Dir: dir, Name: []byte("f")}, Attr: nfs3.SetAttr{ModeSet: true, Mode: 0o2755}}
	if st := r.status(nfs3.Prog, uint32(nfs3.ProcCreate), create.Append(nil)); st != nfs3.OK {
		t.Fatal(st)
	}
	if a := r.lookup(dir, "f").Attr.Attr; a.UID != 0 || a.GID != 1001 || a.Mode != 0o2755 {
		t.Errorf("user %d, group %d, mode %o", a.UID, a.GID, a.Mode)
	}
}
