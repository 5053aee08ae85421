package nfs

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (s *Server) write(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	data, err := c.Data(int(a.write.Len))
	if err != nil {
		return c.Garbage()
	}
	var o filesystem.Object
	var r nfs3.WriteRes
	w := filesystem.Write{Offset: a.write.Offset, N: int(min(a.write.Count, a.write.Len)), Data: data, Stable: stabilityOf(a.write.Stable), By: c}
	e := s.fs.FindToChange(&a.caller, a.write.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		e = o.Write(&w)
		countersOf(a.caller.Export).written.Add(uint64(w.Done))
	}
	if v, is := notNow(e); is {
		return v
	}
	r.Status = statusOf(e)
	wccOf(&w.Change, &r.Wcc)
	r.Count, r.Stable, r.Verf = uint32(w.Done), a.write.Stable, verfOf(w.Verf)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) commit(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	r := nfs3.WriteRes{Commit: true}
	e := s.fs.FindToChange(&a.caller, a.span.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		var w filesystem.Change
		var verf uint64
		verf, e = o.Commit(&w)
		r.Verf = verfOf(verf)
		wccOf(&w, &r.Wcc)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) setattr(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.WccRes
	e := s.fs.FindToChange(&a.caller, a.setattr.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		var guard func(*filesystem.Change) bool
		if a.setattr.Guard {
			guard = func(c *filesystem.Change) bool { return timeOf(c.Ctime) == a.setattr.Ctime }
		}
		attr := setAttrOf(&a.setattr.Attr)
		var w filesystem.Change
		e = o.SetAttr(&attr, guard, &w)
		wccOf(&w, &r.Wcc)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}
