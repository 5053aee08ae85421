package nfs

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (s *Server) remove(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	return s.removing(c, a, (*filesystem.Object).Remove)
}

func (s *Server) rmdir(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	return s.removing(c, a, (*filesystem.Object).Rmdir)
}

func (s *Server) removing(c *rpcserver.Call, a *arguments, rm func(*filesystem.Object, []byte, *filesystem.Change) filesystem.Errno) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.WccRes
	e := s.fs.FindDir(&a.caller, a.dirOp.Dir, &o, true)
	if e == filesystem.OK {
		defer o.End()
		var w filesystem.Change
		e = rm(&o, a.dirOp.Name, &w)
		wccOf(&w, &r.Wcc)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) rename(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var from, to filesystem.Object
	var r nfs3.RenameRes
	e := s.fs.FindDir(&a.caller, a.rename.From.Dir, &from, true)
	if e == filesystem.OK {
		defer from.End()
		if e = s.fs.FindDir(&a.caller, a.rename.To.Dir, &to, true); e == filesystem.OK {
			defer to.End()
			var wFrom, wTo filesystem.Change
			e = from.Rename(a.rename.From.Name, &to, a.rename.To.Name, &wFrom, &wTo)
			wccOf(&wFrom, &r.From)
			wccOf(&wTo, &r.To)
		}
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) link(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var file, dir filesystem.Object
	var r nfs3.LinkRes
	e := s.fs.FindToChange(&a.caller, a.link.FH, &file)
	if e == filesystem.OK {
		defer file.End()
		if e = s.fs.FindDir(&a.caller, a.link.Link.Dir, &dir, true); e == filesystem.OK {
			defer dir.End()
			var w filesystem.Change
			e = file.Link(&dir, a.link.Link.Name, &w)
			wccOf(&w, &r.Dir)
		}
		after(&file, &r.Attr)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}
