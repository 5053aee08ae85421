package nfs

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// arguments are those of one call, parsed once. A Call keeps its record when it is used again, so that a call allocates none. What is in it
// aliases the message.
type arguments struct {
	handle []byte             // the first, which says what export a call is about
	export *filesystem.Served // that export, of a call that is tried inline
	caller filesystem.Caller  // while it is executed

	fh      nfs3.FHArgs
	setattr nfs3.SetattrArgs
	dirOp   nfs3.DirOp
	access  nfs3.AccessArgs
	span    nfs3.RangeArgs
	write   nfs3.WriteArgs
	create  nfs3.CreateArgs
	mkdir   nfs3.MkdirArgs
	symlink nfs3.SymlinkArgs
	mknod   nfs3.MknodArgs
	rename  nfs3.RenameArgs
	link    nfs3.LinkArgs
	readdir nfs3.ReaddirArgs
}

// argsOf is the record of a call.
func argsOf(c *rpcserver.Call) *arguments {
	a, ok := c.Parsed.(*arguments)
	if !ok {
		a = &arguments{}
		c.Parsed = a
	}
	return a
}

// parse takes the arguments of a procedure, up to bulk data, and reports whether they are legal.
func (a *arguments) parse(proc nfs3.Proc, c *rpcserver.Call) bool {
	r := (*xdr.Reader)(&c.Args)
	switch proc {
	case nfs3.ProcGetattr, nfs3.ProcReadlink, nfs3.ProcFsstat, nfs3.ProcFsinfo, nfs3.ProcPathconf:
		a.fh.Parse(r)
		a.handle = a.fh.FH
	case nfs3.ProcSetattr:
		a.setattr.Parse(r)
		a.handle = a.setattr.FH
	case nfs3.ProcLookup, nfs3.ProcRemove, nfs3.ProcRmdir:
		a.dirOp.Parse(r)
		a.handle = a.dirOp.Dir
	case nfs3.ProcAccess:
		a.access.Parse(r)
		a.handle = a.access.FH
	case nfs3.ProcRead, nfs3.ProcCommit:
		a.span.Parse(r)
		a.handle = a.span.FH
	case nfs3.ProcWrite:
		a.write.Parse(r)
		a.handle = a.write.FH
	case nfs3.ProcCreate:
		a.create.Parse(r)
		a.handle = a.create.Where.Dir
	case nfs3.ProcMkdir:
		a.mkdir.Parse(r)
		a.handle = a.mkdir.Where.Dir
	case nfs3.ProcSymlink:
		a.symlink.Parse(r)
		a.handle = a.symlink.Where.Dir
	case nfs3.ProcMknod:
		a.mknod.Parse(r)
		a.handle = a.mknod.Where.Dir
	case nfs3.ProcRename:
		a.rename.Parse(r)
		a.handle = a.rename.From.Dir
	case nfs3.ProcLink:
		a.link.Parse(r)
		a.handle = a.link.FH
	case nfs3.ProcReaddir, nfs3.ProcReaddirplus:
		a.readdir.Plus = proc == nfs3.ProcReaddirplus
		a.readdir.Parse(r)
		a.handle = a.readdir.Dir
	}
	return r.Err() == nil
}
