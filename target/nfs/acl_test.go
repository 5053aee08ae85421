package nfs_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (r *raw) getacl(fh []byte, mask uint32) nfs3.ACLRes {
	a := nfs3.ACLArgs{FH: fh, Mask: mask}
	x, err := r.call(nfs3.ACLProg, nfs3.ACLVers, nfs3.ProcGetACL, a.Append(nil))
	must(r.t, err)
	var l nfs3.ACLRes
	l.Parse(x)
	must(r.t, x.Err())
	return l
}

func (r *raw) setacl(fh []byte, mask uint32, access, inherit []nfs3.ACE) nfs3.Status {
	a := nfs3.ACLArgs{Set: true, FH: fh, Mask: mask, ACLs: nfs3.ACLs{AccessCnt: uint32(len(access)), Access: access, DefaultCnt: uint32(len(inherit)), Default: inherit}}
	x, err := r.call(nfs3.ACLProg, nfs3.ACLVers, nfs3.ProcSetACL, a.Append(nil))
	must(r.t, err)
	l := nfs3.ACLRes{Set: true}
	l.Parse(x)
	must(r.t, x.Err())
	if !l.Attr.Set && l.Status == nfs3.OK {
		r.t.Error("SETACL answers without attributes")
	}
	return l.Status
}

// A file's mode is shown as a list, with the fourth entry that Solaris wants.
func TestACLOfAMode(t *testing.T) {
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), nil, 0o600))
	must(t, os.Chmod(filepath.Join(s.dir, "f"), 0o641))
	must(t, os.Symlink("f", filepath.Join(s.dir, "l")))
	r := s.raw(t, 0, 0)
	root, st := r.mount("/data")
	if st != mount3.OK {
		t.Fatal(st)
	}
	f := r.lookup(root, "f")
	own, group := f.Attr.Attr.UID, f.Attr.Attr.GID
	want := []nfs3.ACE{{Tag: nfs3.ACLUserObj, ID: own, Perm: 6}, {Tag: nfs3.ACLGroupObj, ID: group, Perm: 4}, {Tag: nfs3.ACLMask, Perm: 4}, {Tag: nfs3.ACLOther, Perm: 1}}
	l := r.getacl(f.FH, nfs3.MaskAll)
	if l.Status != nfs3.OK || !slices.Equal(l.Access, want) || l.AccessCnt != 4 || l.Default != nil || l.DefaultCnt != 0 || l.Mask != nfs3.MaskAll || !l.Attr.Set {
		t.Errorf("%+v", l)
	}
	if l := r.getacl(f.FH, nfs3.MaskACLCnt); l.Status != nfs3.OK || l.AccessCnt != 4 || l.Access != nil {
		t.Errorf("the length alone: %+v", l)
	}
	if l := r.getacl(f.FH, 0x10); l.Status != nfs3.ErrInval {
		t.Errorf("an unknown bit: %v", l.Status)
	}
	if l := r.getacl(r.lookup(root, "l").FH, nfs3.MaskACL); l.Status != nfs3.OK || len(l.Access) != 4 || l.Access[0].Perm != 7 {
		t.Errorf("a symbolic link shows what it points to: %+v", l)
	}
	if st := r.setacl(f.FH, nfs3.MaskACL, []nfs3.ACE{{Tag: 0x40, Perm: 7}}, nil); st != nfs3.ErrInval {
		t.Errorf("an unknown tag: %v", st)
	}
	if st := r.setacl(f.FH, nfs3.MaskACL, []nfs3.ACE{{Tag: nfs3.ACLUser, ID: 5, Perm: 7}}, nil); st != nfs3.ErrInval {
		t.Errorf("a list without owner, group and others: %v", st)
	}
	must(t, s.nfs.SetExports(nfs.Export{Path: "/data", Dir: s.dir, Rights: nfs.Rights{ReadOnly: true, Insecure: true, Squash: nfs.SquashNone}}))
	if st := r.setacl(f.FH, nfs3.MaskACL, want, nil); st != nfs3.ErrRofs {
		t.Errorf("on a read-only export: %v", st)
	}
}

// Lists are the file system's: the kernel enforces them, for the callers that they name.
func TestACLsOfTheFileSystem(t *testing.T) {
	dir := newDisk(t, "mkfs.ext4", "-F", "-q").dir // others may keep no lists
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("private"), 0o600))
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true, Dir: dir})
	if why := s.nfs.Squashed(); why != "" {
		t.Fatalf("root without the rights of root: %s", why)
	}
	r, stranger := s.raw(t, 0, 0), s.raw(t, 1234, 1234)
	root, _ := r.mount("/data")
	f, d := r.lookup(root, "f").FH, r.lookup(root, "d").FH
	list := []nfs3.ACE{ // in no order
		{Tag: nfs3.ACLOther}, {Tag: nfs3.ACLUser, ID: 1235, Perm: 4}, {Tag: nfs3.ACLUserObj, Perm: 6}, {Tag: nfs3.ACLMask, Perm: 4},
		{Tag: nfs3.ACLGroupObj}, {Tag: nfs3.ACLUser, ID: 1234, Perm: 6},
	}
	if st := stranger.setacl(f, nfs3.MaskACL, list, nil); st != nfs3.ErrPerm {
		t.Errorf("a stranger sets a list: %v", st)
	}
	if st := r.setacl(f, nfs3.MaskACL, list, nil); st != nfs3.OK {
		t.Fatal(st)
	}
	want := []nfs3.ACE{{Tag: nfs3.ACLUserObj, Perm: 6}, {Tag: nfs3.ACLUser, ID: 1234, Perm: 6}, {Tag: nfs3.ACLUser, ID: 1235, Perm: 4}, {Tag: nfs3.ACLGroupObj}, {Tag: nfs3.ACLMask, Perm: 4}, {Tag: nfs3.ACLOther}}
	if l := r.getacl(f, nfs3.MaskAll); !slices.Equal(l.Access, want) {
		t.Errorf("read back: %+v", l.Access)
	}
	access := func(x *raw, fh []byte) uint32 {
		a := nfs3.AccessArgs{FH: fh, Access: nfs3.AccessRead | nfs3.AccessModify}
		rd, err := x.call(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcAccess), a.Append(nil))
		must(t, err)
		var res nfs3.AccessRes
		res.Parse(rd)
		must(t, rd.Err())
		return res.Access
	}
	// The mask leaves the named user nothing but reading.
	if got := access(stranger, f); got != nfs3.AccessRead {
		t.Errorf("a user with an entry may 0x%x", got)
	}
	if got := access(s.raw(t, 1236, 1236), f); got != 0 {
		t.Errorf("a user without one may 0x%x", got)
	}
	// What is made in a directory with a default list has that list.
	inherit := []nfs3.ACE{
		{Tag: nfs3.ACLUserObj | nfs3.DefaultFlag, Perm: 7}, {Tag: nfs3.ACLUser | nfs3.DefaultFlag, ID: 1234, Perm: 6}, {Tag: nfs3.ACLGroupObj | nfs3.DefaultFlag},
		{Tag: nfs3.ACLMask | nfs3.DefaultFlag, Perm: 6}, {Tag: nfs3.ACLOther | nfs3.DefaultFlag},
	}
	if st := r.setacl(d, nfs3.MaskDefault, nil, inherit); st != nfs3.OK {
		t.Fatal(st)
	}
	if l := r.getacl(d, nfs3.MaskAll); len(l.Default) != 5 || l.DefaultCnt != 5 || l.Default[1] != inherit[1] || len(l.Access) != 4 {
		t.Errorf("%+v", l)
	}
	v := s.mount(t)
	file, err := v.Create(context.Background(), "d/new", 0o660)
	must(t, err)
	must(t, file.Close())
	made := r.lookup(d, "new").FH
	if l := r.getacl(made, nfs3.MaskACL); len(l.Access) != 5 || l.Access[1] != (nfs3.ACE{Tag: nfs3.ACLUser, ID: 1234, Perm: 6}) {
		t.Errorf("inherited: %+v", l.Access)
	}
	if got := access(stranger, made); got != nfs3.AccessRead|nfs3.AccessModify {
		t.Errorf("the user of the inherited entry may 0x%x", got)
	}
	// An empty list takes it away.
	if st := r.setacl(d, nfs3.MaskDefault, nil, nil); st != nfs3.OK {
		t.Fatal(st)
	}
	if l := r.getacl(d, nfs3.MaskDefault); l.Default != nil {
		t.Errorf("%+v", l.Default)
	}
}

// A directory's default list limits what is made there, whatever mode is asked for: chmod(2) would give away what it
// withholds.
func TestDefaultListsBindWhatIsMade(t *testing.T) {
	dir := newDisk(t, "mkfs.ext4", "-F", "-q").dir
	s := start(t, "tcp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Dir: dir, Async: true})
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	inherit := []nfs3.ACE{
		{Tag: nfs3.ACLUserObj | nfs3.DefaultFlag, Perm: 7}, {Tag: nfs3.ACLUser | nfs3.DefaultFlag, ID: 1234, Perm: 7}, {Tag: nfs3.ACLGroupObj | nfs3.DefaultFlag, Perm: 5},
		{Tag: nfs3.ACLMask | nfs3.DefaultFlag, Perm: 4}, {Tag: nfs3.ACLOther | nfs3.DefaultFlag},
	}
	if st := r.setacl(root, nfs3.MaskDefault, nil, inherit); st != nfs3.OK {
		t.Fatal(st)
	}
	at := func(name string) nfs3.DirOp { return nfs3.DirOp{Dir: root, Name: []byte(name)} }
	attr := nfs3.SetAttr{ModeSet: true, Mode: 0o2777}
	create := nfs3.CreateArgs{Where: at("file"), Attr: attr}
	guarded := nfs3.CreateArgs{Where: at("guarded"), How: nfs3.Guarded, Attr: attr}
	mkdir := nfs3.MkdirArgs{Where: at("dir"), Attr: attr}
	fifo := nfs3.MknodArgs{Where: at("fifo"), Type: nfs3.TypeFifo, Attr: attr}
	for name, st := range map[string]nfs3.Status{
		"file":    r.status(nfs3.Prog, uint32(nfs3.ProcCreate), create.Append(nil)),
		"guarded": r.status(nfs3.Prog, uint32(nfs3.ProcCreate), guarded.Append(nil)),
		"dir":     r.status(nfs3.Prog, uint32(nfs3.ProcMkdir), mkdir.Append(nil)),
		"fifo":    r.status(nfs3.Prog, uint32(nfs3.ProcMknod), fifo.Append(nil)),
	} {
		if st != nfs3.OK {
			t.Errorf("%s: %v", name, st)
			continue
		}
		l := r.lookup(root, name)
		if l.Attr.Attr.Mode != 0o2740 {
			t.Errorf("%s has mode %o, where the list leaves 740 of 777", name, l.Attr.Attr.Mode)
		}
		if a := r.getacl(l.FH, nfs3.MaskACL); len(a.Access) != 5 || a.Access[3] != (nfs3.ACE{Tag: nfs3.ACLMask, Perm: 4}) || a.Access[4] != (nfs3.ACE{Tag: nfs3.ACLOther}) {
			t.Errorf("%s: %+v", name, a.Access)
		}
	}
	// SETATTR is a chmod, and changes the mask.
	set := nfs3.SetattrArgs{FH: r.lookup(root, "file").FH, Attr: nfs3.SetAttr{ModeSet: true, Mode: 0o660}}
	if st := r.status(nfs3.Prog, uint32(nfs3.ProcSetattr), set.Append(nil)); st != nfs3.OK || r.lookup(root, "file").Attr.Attr.Mode != 0o660 {
		t.Errorf("SETATTR of a mode: %v", st)
	}
}
