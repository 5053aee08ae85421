package nfs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (s *Server) getattr(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.AttrRes
	e := s.fs.Find(&a.caller, a.fh.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		var st filesystem.Attr
		if e = o.Stat(&st); e == filesystem.OK {
			attrOf(&st, &r.Attr)
		}
	}
	if v, is := notNow(e); is {
		return v
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) lookup(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.LookupRes
	e := s.fs.FindDir(&a.caller, a.dirOp.Dir, &o, false)
	if e == filesystem.OK {
		defer o.End()
		var st filesystem.Attr
		r.FH, e = o.Lookup(a.dirOp.Name, &st)
		postOf(&st, &r.Attr)
		after(&o, &r.Dir)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) access(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.AccessRes
	e := s.fs.Find(&a.caller, a.access.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		var st filesystem.Attr
		if e = o.Stat(&st); e == filesystem.OK {
			postOf(&st, &r.Attr)
			var may filesystem.May
			may, e = o.Access()
			r.Access = accessBits(may, typeOf(st.Format)) & a.access.Access
		}
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

// accessBits are the bits of ACCESS (RFC 1813 section 3.3.4).
func accessBits(may filesystem.May, of nfs3.FileType) (bits uint32) {
	if may.Read {
		bits |= nfs3.AccessRead
	}
	if may.Write {
		bits |= nfs3.AccessModify | nfs3.AccessExtend
	}
	switch {
	case !may.Execute:
	case of != nfs3.TypeDir:
		bits |= nfs3.AccessExecute
	default:
		bits |= nfs3.AccessLookup
		if may.Write {
			bits |= nfs3.AccessDelete
		}
	}
	return bits
}

func (s *Server) readlink(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.ReadlinkRes
	n := 0
	e := s.fs.Find(&a.caller, a.fh.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		if o.Format() != unix.S_IFLNK {
			e = filesystem.Errno(unix.EINVAL)
		} else if sink, err := c.Sink(nfs3.MaxPath); errors.Is(err, rpcserver.ErrNoMemory) {
			return rpcserver.Later
		} else if err != nil {
			e = filesystem.ErrLater
		} else {
			n, e = o.Readlink(sink[0])
		}
		after(&o, &r.Attr)
	}
	r.Status, r.Len = statusOf(e), uint32(n)
	c.Out = r.Append(c.Out)
	if r.Status == nfs3.OK {
		c.SetPayload(n)
	}
	return rpcserver.Done
}

func (s *Server) read(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.ReadRes
	rd := filesystem.Read{Offset: a.span.Offset, Want: int(min(a.span.Count, MaxTransfer)), Into: c}
	e := s.fs.Find(&a.caller, a.span.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		e = o.Read(&rd)
	}
	if v, is := notNow(e); is {
		return v
	}
	r.Status = statusOf(e)
	postOf(&rd.Attr, &r.Attr)
	r.Count, r.Len, r.EOF = uint32(rd.N), uint32(rd.N), rd.EOF
	c.Out = r.Append(c.Out)
	if r.Status == nfs3.OK {
		c.SetPayload(rd.N)
		countersOf(a.caller.Export).read.Add(uint64(rd.N))
	}
	return rpcserver.Done
}
