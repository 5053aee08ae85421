package nfs

import (
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/target/filesystem"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

func (s *Server) fsstat(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	var r nfs3.FsstatRes
	e := s.fs.Find(&a.caller, a.fh.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		var st filesystem.StatFS
		e = o.StatFS(&st)
		r.Total, r.Free, r.Avail = st.Total, st.Free, st.Avail
		r.Files, r.FFree, r.FAvail = st.Files, st.FilesFree, st.FilesFree
		after(&o, &r.Attr)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) fsinfo(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	r := nfs3.FsinfoRes{RTMax: MaxTransfer, RTPref: MaxTransfer, RTMult: 4096, WTMax: MaxTransfer, WTPref: MaxTransfer, WTMult: 4096,
		DTPref: maxReaddir, MaxFileSize: 1<<63 - 1, TimeDelta: nfs3.Time{Nsec: 1},
		Properties: nfs3.FSFLink | nfs3.FSFSymlink | nfs3.FSFHomogeneous | nfs3.FSFCanSetTime}
	if c.Peer.UDP {
		// A datagram carries no megabyte; what fits without IP reassembly of many fragments does.
		r.RTMax, r.RTPref, r.WTMax, r.WTPref, r.DTPref = 8192, 8192, 8192, 8192, 4096
	}
	e := s.fs.Find(&a.caller, a.fh.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		after(&o, &r.Attr)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}

func (s *Server) pathconf(c *rpcserver.Call, a *arguments) rpcserver.Verdict {
	var o filesystem.Object
	// Linux file systems cut no name short, and only root may give a file away.
	r := nfs3.PathconfRes{LinkMax: 32000, NameMax: filesystem.MaxName, NoTrunc: true, ChownRestricted: true, CasePreserving: true}
	e := s.fs.Find(&a.caller, a.fh.FH, &o)
	if e == filesystem.OK {
		defer o.End()
		after(&o, &r.Attr)
	}
	r.Status = statusOf(e)
	c.Out = r.Append(c.Out)
	return rpcserver.Done
}
