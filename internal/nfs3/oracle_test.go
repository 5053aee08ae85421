package nfs3

import (
	"bytes"
	"testing"

	gonfs "github.com/vmware/go-nfs-client/nfs"
	oracle "github.com/vmware/go-nfs-client/nfs/xdr"
	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/internal/xdr"
)

// The oracle is the reflecting encoder of go-nfs-client and its vocabulary: written by others, from the same RFC.
func want(t *rapid.T, v ...any) []byte {
	var b bytes.Buffer
	for _, x := range v {
		if err := oracle.Write(&b, x); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func check(t *rapid.T, what string, got, want []byte) {
	if !bytes.Equal(got, want) {
		t.Fatalf("%s:\n  ours %x\ntheirs %x", what, got, want)
	}
}

var (
	u32   = rapid.Uint32()
	u64   = rapid.Uint64()
	names = rapid.SliceOfN(rapid.Byte(), 0, 255)
	fhs   = rapid.SliceOfN(rapid.Byte(), 0, MaxFH)
)

func genTime(t *rapid.T) Time { return Time{u32.Draw(t, "s"), u32.Draw(t, "ns")} }

func genAttr(t *rapid.T) Attr {
	return Attr{Type: FileType(rapid.Uint32Range(1, 7).Draw(t, "type")), Mode: u32.Draw(t, "mode"), Nlink: u32.Draw(t, "nlink"), UID: u32.Draw(t, "uid"),
		GID: u32.Draw(t, "gid"), Size: u64.Draw(t, "size"), Used: u64.Draw(t, "used"), Major: u32.Draw(t, "major"), Minor: u32.Draw(t, "minor"),
		FSID: u64.Draw(t, "fsid"), FileID: u64.Draw(t, "fileid"), Atime: genTime(t), Mtime: genTime(t), Ctime: genTime(t)}
}

func theirTime(a Time) gonfs.NFS3Time { return gonfs.NFS3Time{Seconds: a.Sec, Nseconds: a.Nsec} }

func theirAttr(a Attr) gonfs.Fattr {
	return gonfs.Fattr{Type: uint32(a.Type), FileMode: a.Mode, Nlink: a.Nlink, UID: a.UID, GID: a.GID, Filesize: a.Size, Used: a.Used,
		SpecData: [2]uint32{a.Major, a.Minor}, FSID: a.FSID, Fileid: a.FileID, Atime: theirTime(a.Atime), Mtime: theirTime(a.Mtime), Ctime: theirTime(a.Ctime)}
}

func genOpt(t *rapid.T) (OptAttr, gonfs.PostOpAttr) {
	if !rapid.Bool().Draw(t, "attr") {
		return OptAttr{}, gonfs.PostOpAttr{}
	}
	a := genAttr(t)
	return OptAttr{Set: true, Attr: a}, gonfs.PostOpAttr{IsSet: true, Attr: theirAttr(a)}
}

func genSetAttr(t *rapid.T) (SetAttr, gonfs.Sattr3) {
	var a SetAttr
	var b gonfs.Sattr3
	bit := func(s string) bool { return rapid.Bool().Draw(t, s) }
	if bit("m") {
		a.ModeSet, a.Mode = true, u32.Draw(t, "mode")
		b.Mode = gonfs.SetMode{SetIt: true, Mode: a.Mode}
	}
	if bit("u") {
		a.UIDSet, a.UID = true, u32.Draw(t, "uid")
		b.UID = gonfs.SetUID{SetIt: true, UID: a.UID}
	}
	if bit("g") {
		a.GIDSet, a.GID = true, u32.Draw(t, "gid")
		b.GID = gonfs.SetUID{SetIt: true, UID: a.GID}
	}
	if bit("s") {
		a.SizeSet, a.Size = true, u64.Draw(t, "size")
		b.Size = gonfs.SetSize{SetIt: true, Size: a.Size}
	}
	for _, p := range []struct {
		a *SetTime
		b *gonfs.SetTime
	}{{&a.Atime, &b.Atime}, {&a.Mtime, &b.Mtime}} {
		p.a.How = TimeHow(rapid.Uint32Range(0, 2).Draw(t, "how"))
		p.b.SetIt = gonfs.TimeHow(p.a.How)
		if p.a.How == ClientTime {
			p.a.Time = genTime(t)
			p.b.Time = theirTime(p.a.Time)
		}
	}
	return a, b
}

func TestOracleAttributes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := genAttr(t)
		check(t, "fattr3", a.Append(nil), want(t, theirAttr(a)))
		o, p := genOpt(t)
		check(t, "post_op_attr", o.Append(nil), want(t, p))
		s, q := genSetAttr(t)
		check(t, "sattr3", s.Append(nil), want(t, q))
		var back SetAttr
		r := xdr.NewReader(s.Append(nil))
		if back.Parse(&r); back != s || r.Err() != nil || r.Len() != 0 {
			t.Fatalf("%+v became %+v", s, back)
		}
		d := DirOp{fhs.Draw(t, "fh"), names.Draw(t, "name")}
		check(t, "diropargs3", d.Append(nil), want(t, gonfs.Diropargs3{FH: d.Dir, Filename: string(d.Name)}))
	})
}

func TestOracleWcc(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Wcc
		var g gonfs.WccData
		if rapid.Bool().Draw(t, "before") {
			w.BeforeSet, w.Size, w.Mtime, w.Ctime = true, u64.Draw(t, "size"), genTime(t), genTime(t)
			g.Before.IsSet, g.Before.Size, g.Before.MTime, g.Before.CTime = true, w.Size, theirTime(w.Mtime), theirTime(w.Ctime)
		}
		w.After, g.After = genOpt(t)
		check(t, "wcc_data", w.Append(nil), want(t, g))
		wr := WriteRes{Wcc: w, Count: u32.Draw(t, "count"), Stable: FileSync, Verf: Verf{1, 2, 3, 4, 5, 6, 7, 8}}
		check(t, "WRITE3res", wr.Append(nil), want(t, uint32(0), g, wr.Count, uint32(2), uint64(0x0102030405060708)))
		var back WriteRes
		r := xdr.NewReader(wr.Append(nil))
		if back.Parse(&r); back != wr || r.Err() != nil {
			t.Fatalf("%+v became %+v, %v", wr, back, r.Err())
		}
	})
}

func TestOracleHotProcedures(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fh, off, n := fhs.Draw(t, "fh"), u64.Draw(t, "off"), u32.Draw(t, "n")
		ra := RangeArgs{fh, off, n}
		check(t, "READ3args", ra.Append(nil), want(t, struct {
			FH    []byte
			Off   uint64
			Count uint32
		}{fh, off, n}))
		data := rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "data")
		wa := WriteArgs{fh, off, n, DataSync, uint32(len(data))}
		check(t, "WRITE3args", xdr.AppendFixed(wa.Append(nil), data), want(t, struct {
			FH            []byte
			Off           uint64
			Count, Stable uint32
			Data          []byte
		}{fh, off, n, 1, data}))
		o, p := genOpt(t)
		rr := ReadRes{Attr: o, Count: uint32(len(data)), EOF: true, Len: uint32(len(data))}
		check(t, "READ3res", xdr.AppendFixed(rr.Append(nil), data), want(t, struct {
			Status uint32
			Attr   gonfs.PostOpAttr
			Count  uint32
			EOF    bool
			Data   []byte
		}{0, p, rr.Count, true, data}))
	})
}

func TestOracleEntriesAndFsinfo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, p := genOpt(t)
		e := Entry{Plus: true, FileID: u64.Draw(t, "id"), Name: names.Draw(t, "name"), Cookie: u64.Draw(t, "cookie"), Attr: o}
		g := gonfs.EntryPlus{FileId: e.FileID, FileName: string(e.Name), Cookie: e.Cookie, Attr: p}
		if rapid.Bool().Draw(t, "fh") {
			e.FH = append(OptFH{}, fhs.Draw(t, "fh")...)
			g.Handle = gonfs.PostOpFH3{IsSet: true, FH: e.FH}
		}
		check(t, "entryplus3", e.Append(nil), want(t, true, g))
		var back Entry
		back.Plus = true
		r := xdr.NewReader(AppendEnd(e.Append(nil), true))
		if more, _ := back.Parse(&r); !more || !bytes.Equal(back.Append(nil), e.Append(nil)) {
			t.Fatalf("%+v became %+v", e, back)
		}
		if more, eof := back.Parse(&r); more || !eof || r.Len() != 0 {
			t.Fatal("the end of the list was not seen")
		}
		f := FsinfoRes{Attr: o, RTMax: u32.Draw(t, "rtmax"), DTPref: u32.Draw(t, "dtpref"), MaxFileSize: u64.Draw(t, "max"), TimeDelta: genTime(t), Properties: u32.Draw(t, "props")}
		check(t, "FSINFO3res", f.Append(nil), want(t, uint32(0), gonfs.FSInfo{Attr: p, RTMax: f.RTMax, DTPref: f.DTPref, Size: f.MaxFileSize, TimeDelta: theirTime(f.TimeDelta), Properties: f.Properties}))
	})
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	b := make([]byte, 0, 512)
	ra := RangeArgs{FH: make([]byte, 32), Offset: 1, Count: 4096}
	args := ra.Append(nil)
	wa := WriteArgs{FH: make([]byte, 32), Len: 4096}
	wargs := wa.Append(nil)
	res := ReadRes{Attr: OptAttr{Set: true}}
	wres := WriteRes{Wcc: Wcc{BeforeSet: true, After: OptAttr{Set: true}}}
	for what, f := range map[string]func(){
		"parse READ":  func() { r := xdr.NewReader(args); ra.Parse(&r) },
		"parse WRITE": func() { r := xdr.NewReader(wargs); wa.Parse(&r) },
		"READ res":    func() { b = res.Append(b[:0]) },
		"WRITE res":   func() { b = wres.Append(b[:0]) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
}
