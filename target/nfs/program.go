package nfs

import (
	"encoding/binary"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/hist"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// program is the NFS program.
type program Server

// ID is the program number.
func (p *program) ID() uint32 { return nfs3.Prog }

// Versions are 3 and 3.
func (p *program) Versions() (low, high uint32) { return nfs3.Vers, nfs3.Vers }

type procedure struct {
	run   func(*Server, *rpcserver.Call, *arguments) rpcserver.Verdict
	class rpcserver.Class
	attrs int  // flags of attributes in a result that is an error
	keep  bool // does harm when executed twice (RFC 1813 section 4.5)
}

var procedures = [nfs3.NumProcs]procedure{
	nfs3.ProcGetattr:     {run: (*Server).getattr, class: rpcserver.Inline},
	nfs3.ProcSetattr:     {run: (*Server).setattr, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcLookup:      {run: (*Server).lookup, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcAccess:      {run: (*Server).access, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcReadlink:    {run: (*Server).readlink, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcRead:        {run: (*Server).read, attrs: 1, class: rpcserver.Inline},
	nfs3.ProcWrite:       {run: (*Server).write, attrs: 2, class: rpcserver.Brief},
	nfs3.ProcCreate:      {run: (*Server).create, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcMkdir:       {run: (*Server).mkdir, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcSymlink:     {run: (*Server).symlink, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcMknod:       {run: (*Server).mknod, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcRemove:      {run: (*Server).remove, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcRmdir:       {run: (*Server).rmdir, attrs: 2, keep: true, class: rpcserver.Worker},
	nfs3.ProcRename:      {run: (*Server).rename, attrs: 4, keep: true, class: rpcserver.Worker},
	nfs3.ProcLink:        {run: (*Server).link, attrs: 3, keep: true, class: rpcserver.Worker},
	nfs3.ProcReaddir:     {run: (*Server).readdir, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcReaddirplus: {run: (*Server).readdir, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcFsstat:      {run: (*Server).fsstat, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcFsinfo:      {run: (*Server).fsinfo, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcPathconf:    {run: (*Server).pathconf, attrs: 1, class: rpcserver.Worker},
	nfs3.ProcCommit:      {run: (*Server).commit, attrs: 2, class: rpcserver.Worker},
}

// Keeps reports the procedures that must not be executed twice.
func (p *program) Keeps(_, proc uint32) bool {
	return proc < uint32(nfs3.NumProcs) && procedures[proc].keep
}

// Overwrites reports WRITE, and what must not be executed twice: executed late they take back what came after them. The reply
// cache does not keep all of the latter off: it forgets.
func (p *program) Overwrites(vers, proc uint32) bool {
	return nfs3.Proc(proc) == nfs3.ProcWrite || p.Keeps(vers, proc)
}

// Classify parses the arguments. A READ or a GETATTR is tried by who reads the connection, but of a medium that may hang; a WRITE is brief where it
// goes to the page cache, or where there is nothing below that.
func (p *program) Classify(c *rpcserver.Call) rpcserver.Class {
	s, proc := (*Server)(p), nfs3.Proc(c.Proc)
	if proc >= nfs3.NumProcs || procedures[proc].run == nil {
		c.NoProc()
		return rpcserver.Answered
	}
	a := argsOf(c)
	if !a.parse(proc, c) {
		c.Garbage()
		p.stray.observe(c, 0)
		return rpcserver.Answered
	}
	class := procedures[proc].class
	a.export = nil
	switch class {
	case rpcserver.Inline:
		if a.export = s.fs.ExportOf(a.handle); a.export != nil && a.export.MayHang() {
			return rpcserver.Worker
		}
	case rpcserver.Brief:
		if a.write.Stable == nfs3.Unstable {
			break
		}
		if e := s.fs.ExportOf(a.handle); e == nil || !e.InMemory() {
			return rpcserver.Worker
		}
	}
	return class
}

// Serve executes one call.
func (p *program) Serve(c *rpcserver.Call) rpcserver.Verdict {
	s, pr, a := (*Server)(p), &procedures[c.Proc], argsOf(c)
	if c.Worker {
		in, ok := s.fs.ExportOf(a.handle).Enter(c.Peer)
		if !ok {
			return later(c, pr.attrs)
		}
		defer in.Leave()
	}
	a.caller = callerOf(c)
	a.caller.Named = a.export
	from := hist.Clock()
	v := pr.run(s, c, a)
	if v != rpcserver.Again {
		k := &p.stray
		if e := a.caller.Export; e != nil {
			k = countersOf(e)
		}
		k.observe(c, hist.Clock()-from)
	}
	a.caller = filesystem.Caller{}
	return v
}

// callerOf is who speaks by a call.
func callerOf(c *rpcserver.Call) filesystem.Caller {
	from := filesystem.Caller{Peer: c.Peer, MayWait: c.Worker}
	if c.Cred.Flavor == oncrpc.AuthSys {
		from.Cred = filesystem.Credential{Known: true, UID: c.Sys.UID, GID: c.Sys.GID, Groups: c.Sys.Groups[:c.Sys.NGroups]}
	}
	return from
}

// later answers NFS3ERR_JUKEBOX; words of the result are the flags of attributes that are not there.
func later(c *rpcserver.Call, words int) rpcserver.Verdict {
	c.Out = binary.BigEndian.AppendUint32(c.Out[:oncrpc.ReplyLen], uint32(nfs3.ErrJukebox))
	c.Out = append(c.Out, make([]byte, 4*words)...)
	return rpcserver.Done
}

// notNow is the verdict on a call that has no result yet, false where it has one.
func notNow(e filesystem.Errno) (v rpcserver.Verdict, is bool) {
	switch e {
	case filesystem.ErrWait:
		return rpcserver.Again, true
	case filesystem.ErrNoMemory:
		return rpcserver.Later, true
	case filesystem.ErrSuperseded:
		return rpcserver.Drop, true
	}
	return 0, false
}
