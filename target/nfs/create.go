package nfs

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// making is what CREATE, MKDIR, SYMLINK and MKNOD have in common.
func (s *Server) making(c *rpcserver.Call, a *arguments, where *nfs3.DirOp, mk func(*filesystem.Object, *filesystem.Made) filesystem.Errno) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.CreateRes
	e := s.fs.FindDir(&a.caller, where.Dir, &o, true)
	if e == filesystem.OK {
		defer o.End()
		var m filesystem.Made
		e = mk(&o, &m)
		r.FH = m.Handle
		postOf(&m.Attr, &r.Attr)
		wccOf(&m.Dir, &r.Dir)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) create(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	how := filesystem.Unchecked
	switch a.create.How {
	case nfs3.Guarded:
		how = filesystem.Guarded
	case nfs3.Exclusive:
		how = filesystem.Exclusive
	}
	attr := setAttrOf(&a.create.Attr)
	return s.making(c, a, &a.create.Where, func(dir *filesystem.Object, m *filesystem.Made) filesystem.Errno {
		return dir.Create(a.create.Where.Name, how, &attr, a.create.Verf, m)
	})
}

func (s *Server) mkdir(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	attr := setAttrOf(&a.mkdir.Attr)
	return s.making(c, a, &a.mkdir.Where, func(dir *filesystem.Object, m *filesystem.Made) filesystem.Errno {
		return dir.Mkdir(a.mkdir.Where.Name, &attr, m)
	})
}

func (s *Server) symlink(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	data, err := c.Data(int(min(a.symlink.PathLen, 1<<30)))
	if err != nil {
		return c.Garbage()
	}
	target := bytes.Join(data, nil)
	attr := setAttrOf(&a.symlink.Attr)
	return s.making(c, a, &a.symlink.Where, func(dir *filesystem.Object, m *filesystem.Made) filesystem.Errno {
		return dir.Symlink(a.symlink.Where.Name, target, &attr, m)
	})
}

func (s *Server) mknod(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var format uint32
	switch a.mknod.Type {
	case nfs3.TypeBlk:
		format = unix.S_IFBLK
	case nfs3.TypeChr:
		format = unix.S_IFCHR
	case nfs3.TypeSock:
		format = unix.S_IFSOCK
	case nfs3.TypeFifo:
		format = unix.S_IFIFO
	}
	attr := setAttrOf(&a.mknod.Attr)
	return s.making(c, a, &a.mknod.Where, func(dir *filesystem.Object, m *filesystem.Made) filesystem.Errno {
		return dir.Mknod(a.mknod.Where.Name, format, a.mknod.Major, a.mknod.Minor, &attr, m)
	})
}
