package nfs

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// Screen refuses a call by its handle and its caller before the data of its argument is fetched. WRITE and SYMLINK are the
// procedures whose arguments have bulk data (RFC 8267 section 2).
func (p *program) Screen(c *rpcserver.Call) rpcserver.Verdict {
	s := (*Server)(p)
	switch nfs3.Proc(c.Proc) {
	case nfs3.ProcWrite, nfs3.ProcSymlink:
	default:
		return c.Garbage()
	}
	fh := argsOf(c).handle
	from := callerOf(c)
	var o filesystem.Object
	e := filesystem.ErrLater
	if in, ok := s.fs.ExportOf(fh).Enter(c.Peer); ok {
		defer in.Leave()
		e = s.fs.FindToChange(&from, fh, &o)
	}
	if e == filesystem.OK {
		o.End()
		return rpcserver.Again
	}
	st := statusOf(e)
	if nfs3.Proc(c.Proc) == nfs3.ProcWrite {
		r := nfs3.WriteRes{Status: st}
		c.Out = r.Append(c.Out)
		return rpcserver.Done
	}
	r := nfs3.CreateRes{Status: st}
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}
