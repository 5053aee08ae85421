package nfs

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// cookieVerf goes with every cookie. A cookie is the file system's own position (the d_off of getdents64), which stays
// true while a directory changes; so the verifier need not change with the directory, only with the meaning of cookies.
var cookieVerf = verfOf(0x646f6666_00000001) // "doff", 1

// readdir is READDIR and READDIRPLUS.
func (s *Server) readdir(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	args := &a.readdir
	var o filesystem.Object
	r := nfs3.ReaddirRes{Verf: cookieVerf}
	e := s.fs.FindDir(&a.caller, args.Dir, &o, false)
	if e != filesystem.OK {
		r.Status = statusOf(e)
		c.Out = r.Append(c.Out)
		return rpcserver.Done
	}
	defer o.End()
	after(&o, &r.Dir)
	if args.Cookie != 0 && args.Verf != cookieVerf {
		r.Status = nfs3.ErrBadCookie
		c.Out = r.Append(c.Out)
		return rpcserver.Done
	}
	most := int(min(args.MaxCount, maxReaddir))
	if c.Reserve(most) != nil {
		return rpcserver.Later
	}
	mark := len(c.Out)
	c.Out = r.Append(c.Out)
	l := lister{c: c, plus: args.Plus, names: int(min(args.DirCount, maxReaddir))}
	if !args.Plus || l.names == 0 {
		l.names = maxReaddir
	}
	l.end = mark + most - 8 // the list's end and the flag have to fit
	end, e := o.ReadDir(args.Cookie, l.entry)
	switch {
	case e != filesystem.OK:
		r.Status = statusOf(e)
	case !end && l.count == 0:
		r.Status = nfs3.ErrToosmall
	default:
		c.Out = nfs3.AppendEnd(c.Out, end)
		return rpcserver.Done
	}
	c.Out = r.Append(c.Out[:mark])
	return rpcserver.Done
}

// lister appends directory entries to a call's result.
type lister struct {
	c     *rpcserver.Call
	plus  bool
	end   int // of c.Out, bytes
	names int // left for names, cookies and file ids, bytes
	count int
}

// entry appends one entry and reports false when it does not fit.
func (l *lister) entry(d *filesystem.Dirent) bool {
	cost := 24 + len(d.Name) + xdr.Pad(len(d.Name))
	if cost > l.names {
		return false
	}
	mark := len(l.c.Out)
	if l.plus {
		d.Look()
	}
	e := nfs3.Entry{Plus: l.plus, FileID: d.Inode, Name: d.Name, Cookie: d.Cookie, FH: d.Handle}
	postOf(&d.Attr, &e.Attr)
	l.c.Out = e.Append(l.c.Out)
	if len(l.c.Out) > l.end {
		l.c.Out = l.c.Out[:mark]
		return false
	}
	l.names -= cost
	l.count++
	return true
}
