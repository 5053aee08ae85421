package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// errWrong says that an answer is a success and is not true.
var errWrong = errors.New("a wrong answer")

// What lies in the directory of each trial before the work.
const (
	contentF, contentG = 'f', 'g'
	sizeF, sizeG       = 16 << 10, 4 << 10
	linked             = "somewhere/else"
)

func prepare(dir string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "f"), bytes.Repeat([]byte{contentF}, sizeF), 0o644),
		os.WriteFile(filepath.Join(dir, "g"), bytes.Repeat([]byte{contentG}, sizeG), 0o644),
		os.Mkdir(filepath.Join(dir, "d"), 0o755),
		os.WriteFile(filepath.Join(dir, "d", "x"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "e"), 0o755),
		os.Symlink(linked, filepath.Join(dir, "l")),
	)
}

// env is what a piece of work has: two clients, handles of what was prepared, and what each client was promised.
type env struct {
	a, b            *client
	dir, f, g, d, l []byte
	name            string // of the directory, below the export

	fs     *infs.FS
	url    func(name string) string // for strangers
	local  string                   // a directory of this machine
	nfscp  string
	hit    func() bool // whether the medium has failed
	claims []claim
	told   []bool // whether each client with data that was acknowledged and not flushed has heard of a loss
}

// claim is data of f that the server has said to be durable.
type claim struct {
	off, n int
	what   byte
	client int
	late   bool // said after the medium had failed
}

type piece struct {
	name string
	do   func(x *env) error
	// times says that the state that is judged has the times of last change too.
	times bool
	// many says that the work is several calls of a program: a failure may leave it half done, and doing it again ends it.
	many bool
	// loss says that the work are unflushed writes, judged by what is claimed.
	loss bool
}

func (x *env) where(name string) nfs3.DirOp { return nfs3.DirOp{Dir: x.dir, Name: []byte(name)} }

func (x *env) create(name string, how nfs3.CreateHow, s nfs3.SetAttr) error {
	a := nfs3.CreateArgs{Where: x.where(name), How: how, Attr: s, Verf: nfs3.Verf{1, 2, 3, 4, 5, 6, 7, 8}}
	return x.a.made(nfs3.ProcCreate, a.Append(nil))
}

func (x *env) rename(name string, to []byte, toName string) error {
	a := nfs3.RenameArgs{From: x.where(name), To: nfs3.DirOp{Dir: to, Name: []byte(toName)}}
	return x.a.changed(nfs3.ProcRename, a.Append(nil))
}

func (x *env) writeOnce(how nfs3.Stable) error {
	_, err := x.a.writeAll(x.f, 4096, bytes.Repeat([]byte{'w'}, 8192), how)
	return err
}

var mode = nfs3.SetAttr{ModeSet: true, Mode: 0o640}

var pieces = []piece{
	{name: "MNT", do: func(x *env) error { _, err := x.a.mount("/a/" + x.name); return err }},
	{name: "GETATTR", do: func(x *env) error { _, err := x.a.getattr(x.f); return err }},
	{name: "SETATTR mode", do: func(x *env) error { return x.a.setattr(x.f, mode) }},
	{name: "SETATTR size", do: func(x *env) error { return x.a.setattr(x.f, nfs3.SetAttr{SizeSet: true, Size: 100}) }},
	{name: "SETATTR owner", do: func(x *env) error {
		return x.a.setattr(x.f, nfs3.SetAttr{UIDSet: true, UID: 1001, GIDSet: true, GID: 1002})
	}},
	{name: "SETATTR times", times: true, do: func(x *env) error {
		t := nfs3.SetTime{How: nfs3.ClientTime, Time: nfs3.Time{Sec: 1e9, Nsec: 5}}
		return x.a.setattr(x.f, nfs3.SetAttr{Atime: t, Mtime: t})
	}},
	{name: "LOOKUP", do: func(x *env) error { _, err := x.a.lookup(x.dir, "g"); return err }},
	{name: "LOOKUP ..", do: func(x *env) error { _, err := x.a.lookup(x.d, ".."); return err }},
	{name: "ACCESS", do: func(x *env) error { return x.a.access(x.f, nfs3.AccessRead|nfs3.AccessModify) }},
	{name: "READLINK", do: func(x *env) error { return x.a.readlink(x.l, linked) }},
	{name: "READ", do: func(x *env) error { return x.a.read(x.f, 0, sizeF, contentF) }},
	{name: "WRITE UNSTABLE", do: func(x *env) error { return x.writeOnce(nfs3.Unstable) }},
	{name: "WRITE DATA_SYNC", do: func(x *env) error { return x.writeOnce(nfs3.DataSync) }},
	{name: "WRITE FILE_SYNC", do: func(x *env) error { return x.writeOnce(nfs3.FileSync) }},
	{name: "CREATE UNCHECKED", do: func(x *env) error { return x.create("new", nfs3.Unchecked, mode) }},
	{name: "CREATE UNCHECKED over a file", do: func(x *env) error {
		return x.create("f", nfs3.Unchecked, nfs3.SetAttr{SizeSet: true})
	}},
	{name: "CREATE GUARDED", do: func(x *env) error { return x.create("new", nfs3.Guarded, mode) }},
	{name: "CREATE EXCLUSIVE", do: func(x *env) error { return x.create("new", nfs3.Exclusive, nfs3.SetAttr{}) }},
	{name: "MKDIR", do: func(x *env) error {
		a := nfs3.MkdirArgs{Where: x.where("new"), Attr: mode}
		return x.a.made(nfs3.ProcMkdir, a.Append(nil))
	}},
	{name: "SYMLINK", do: func(x *env) error {
		a := nfs3.SymlinkArgs{MkdirArgs: nfs3.MkdirArgs{Where: x.where("new")}, PathLen: 8}
		return x.a.made(nfs3.ProcSymlink, append(a.Append(nil), "01234567"...))
	}},
	{name: "MKNOD", do: func(x *env) error {
		a := nfs3.MknodArgs{Where: x.where("new"), Type: nfs3.TypeFifo, Attr: mode}
		return x.a.made(nfs3.ProcMknod, a.Append(nil))
	}},
	{name: "REMOVE", do: func(x *env) error {
		a := x.where("f")
		return x.a.changed(nfs3.ProcRemove, a.Append(nil))
	}},
	{name: "RMDIR", do: func(x *env) error {
		a := x.where("e")
		return x.a.changed(nfs3.ProcRmdir, a.Append(nil))
	}},
	{name: "RENAME", do: func(x *env) error { return x.rename("f", x.dir, "new") }},
	{name: "RENAME over a file", do: func(x *env) error { return x.rename("f", x.dir, "g") }},
	{name: "RENAME to a directory", do: func(x *env) error { return x.rename("f", x.d, "new") }},
	{name: "LINK", do: func(x *env) error {
		a := nfs3.LinkArgs{FH: x.f, Link: nfs3.DirOp{Dir: x.d, Name: []byte("new")}}
		return x.a.changed(nfs3.ProcLink, a.Append(nil))
	}},
	{name: "READDIR", do: func(x *env) error { return x.a.list(x.dir, false, []string{"d", "e", "f", "g", "l"}) }},
	{name: "READDIRPLUS", do: func(x *env) error { return x.a.list(x.dir, true, []string{"d", "e", "f", "g", "l"}) }},
	{name: "FSSTAT", do: func(x *env) error { return x.info(nfs3.ProcFsstat) }},
	{name: "FSINFO", do: func(x *env) error { return x.info(nfs3.ProcFsinfo) }},
	{name: "PATHCONF", do: func(x *env) error { return x.info(nfs3.ProcPathconf) }},
	{name: "COMMIT of nothing", do: func(x *env) error { _, err := x.a.commit(x.f); return err }},
	{name: "NLM LOCK and UNLOCK", do: func(x *env) error {
		if err := x.a.lock(x.f, 1); err != nil {
			return err
		}
		return x.a.unlock(x.f, 1)
	}},
	{name: "NFSACL GETACL", do: func(x *env) error { return x.getacl() }},
	{name: "NFSACL SETACL", do: func(x *env) error { return x.setacl() }},

	{name: "two clients' WRITEs, COMMITs", loss: true, do: func(x *env) error { return x.commits(nil) }},
	{name: "two clients' WRITEs, a synchronous WRITE, COMMITs", loss: true, do: func(x *env) error {
		return x.commits(func() error { _, err := x.b.writeAll(x.f, 12<<10, []byte("x"), nfs3.FileSync); return err })
	}},
	{name: "two clients' WRITEs, SETATTR, COMMITs", loss: true, do: func(x *env) error {
		return x.commits(func() error { return x.b.setattr(x.f, mode) })
	}},
	{name: "two clients' WRITEs, RENAME, COMMITs", loss: true, do: func(x *env) error {
		return x.commits(func() error { return x.rename("f", x.d, "f") })
	}},
	{name: "two clients' WRITEs, SETATTR size, COMMITs", loss: true, do: func(x *env) error {
		return x.commits(func() error { return x.b.setattr(x.f, nfs3.SetAttr{SizeSet: true, Size: 3 * sizeF}) })
	}},

	{name: "a file is written by our initiator", many: true, do: func(x *env) error {
		f, err := x.fs.Create(context.Background(), x.name+"/new", 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(bytes.Repeat([]byte{'w'}, 8192), 0)
		return errors.Join(err, f.Close())
	}},
	{name: "a file is read by our initiator", many: true, do: func(x *env) error {
		b, err := x.fs.ReadFile(x.name + "/f")
		if err == nil && !bytes.Equal(b, bytes.Repeat([]byte{contentF}, sizeF)) {
			err = fmt.Errorf("%w: %d bytes are read", errWrong, len(b))
		}
		return err
	}},
	{name: "a directory is made and removed by our initiator", many: true, do: func(x *env) error {
		err := x.fs.Mkdir(context.Background(), x.name+"/new", 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return x.fs.Remove(context.Background(), x.name+"/new")
	}},
	{name: "nfs-cp to the export", many: true, do: func(x *env) error {
		src := filepath.Join(x.local, "src")
		if err := os.WriteFile(src, bytes.Repeat([]byte{'w'}, 8192), 0o644); err != nil {
			return err
		}
		return x.run(src, x.url("new"))
	}},
	{name: "nfs-cp from the export", many: true, do: func(x *env) error {
		dst := filepath.Join(x.local, "dst")
		_ = os.Remove(dst) // the trial before may have left one
		if err := x.run(x.url("f"), dst); err != nil {
			return err
		}
		b, err := os.ReadFile(dst)
		if err == nil && !bytes.Equal(b, bytes.Repeat([]byte{contentF}, sizeF)) {
			err = fmt.Errorf("%w: %d bytes are read", errWrong, len(b))
		}
		return err
	}},
}

func (x *env) run(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, x.nfscp, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

func (x *env) info(p nfs3.Proc) error {
	a := nfs3.FHArgs{FH: x.dir}
	return x.a.changed(p, a.Append(nil))
}

func (x *env) getacl() error {
	a := nfs3.ACLArgs{FH: x.f, Mask: nfs3.MaskACL}
	r := nfs3.ACLRes{}
	err := x.a.call(nfs3.ACLProg, nfs3.ACLVers, nfs3.ProcGetACL, a.Append(nil), r.Parse)
	if err = outcome(err, r.Status); err == nil && len(r.Access) < 3 {
		err = fmt.Errorf("%w: a list of %d entries", errWrong, len(r.Access))
	}
	return err
}

func (x *env) setacl() error {
	l := []nfs3.ACE{{Tag: nfs3.ACLUserObj, Perm: 6}, {Tag: nfs3.ACLUser, ID: 1001, Perm: 6}, {Tag: nfs3.ACLGroupObj, Perm: 4}, {Tag: nfs3.ACLMask, Perm: 6}, {Tag: nfs3.ACLOther}}
	a := nfs3.ACLArgs{Set: true, FH: x.f, Mask: nfs3.MaskACL, ACLs: nfs3.ACLs{AccessCnt: uint32(len(l)), Access: l}}
	r := nfs3.ACLRes{Set: true}
	err := x.a.call(nfs3.ACLProg, nfs3.ACLVers, nfs3.ProcSetACL, a.Append(nil), func(b *xdr.Reader) { r.Parse(b) })
	return outcome(err, r.Status)
}

// commits has two clients write a part of f each, and ask for both to be durable; between is done before. Each asks twice:
// what it was not told at once it must not be told afterwards.
func (x *env) commits(between func() error) error {
	type writer struct {
		c     *client
		off   int
		what  byte
		verf  nfs3.Verf
		acked bool
	}
	ws := []*writer{{c: x.a, off: 0, what: 'A'}, {c: x.b, off: 8192, what: 'B'}}
	var first error
	for _, w := range ws {
		// Whole pages: the kernel reads none of them first.
		var err error
		w.verf, err = w.c.writeAll(x.f, uint64(w.off), bytes.Repeat([]byte{w.what}, 4096), nfs3.Unstable)
		w.acked = err == nil
		first = errors.Join(first, err)
	}
	if between != nil {
		first = errors.Join(first, between())
	}
	for range 2 {
		for i, w := range ws {
			if !w.acked {
				continue
			}
			for len(x.told) <= i {
				x.told = append(x.told, false)
			}
			late := x.hit()
			v, err := w.c.commit(x.f)
			late = late || x.hit()
			if errors.Is(err, errWrong) {
				return err
			}
			if err != nil || v != w.verf {
				x.told[i] = true
			} else { // also where it was told of a loss before: the verifier has not changed
				x.claims = append(x.claims, claim{w.off, 4096, w.what, i, late})
			}
			first = errors.Join(first, err)
		}
	}
	return first
}
