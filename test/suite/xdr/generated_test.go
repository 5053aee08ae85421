// Package xdr holds our codecs of NFS version 3, MOUNT and NLM against code that others generate from the protocols' own
// description: github.com/buildbarn/go-xdr, from the .x files of the RFCs.
package xdr

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/buildbarn/go-xdr/pkg/protocols/mount"
	"github.com/buildbarn/go-xdr/pkg/protocols/nfsv3"
	"github.com/buildbarn/go-xdr/pkg/protocols/nlm"
	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
)

type ours interface {
	Append([]byte) []byte
	Parse(*xdr.Reader)
}

// theirs decodes what is there, and says what it would encode.
type theirs func(io.Reader) (io.WriterTo, int64, error)

func st[T any, P interface {
	*T
	io.ReaderFrom
	io.WriterTo
}]() theirs {
	return func(r io.Reader) (io.WriterTo, int64, error) {
		p := P(new(T))
		n, err := p.ReadFrom(r)
		return p, n, err
	}
}

func un[U io.WriterTo](read func(io.Reader) (U, int64, error)) theirs {
	return func(r io.Reader) (io.WriterTo, int64, error) {
		u, n, err := read(r)
		return u, n, err
	}
}

// list is for linked lists, of which nil is the empty one.
func list[T any](read func(io.Reader) (*T, int64, error), write func(io.Writer, *T) (int64, error)) theirs {
	return func(r io.Reader) (io.WriterTo, int64, error) {
		l, n, err := read(r)
		return writerTo(func(w io.Writer) (int64, error) { return write(w, l) }), n, err
	}
}

type writerTo func(io.Writer) (int64, error)

func (f writerTo) WriteTo(w io.Writer) (int64, error) { return f(w) }

// bulk is for messages that end in data which our codec leaves to the transport.
type bulk struct {
	ours
	data []byte
}

func (b *bulk) Append(p []byte) []byte { return xdr.AppendFixed(b.ours.Append(p), b.data) }
func (b *bulk) Parse(r *xdr.Reader) {
	b.ours.Parse(r)
	b.data = r.Fixed(int(reflect.ValueOf(b.ours).Elem().FieldByName(lenField(b.ours)).Uint()))
}

func lenField(x ours) string {
	if _, is := x.(*nfs3.SymlinkArgs); is {
		return "PathLen"
	}
	return "Len"
}

// readdir is a listing: the head and the entries.
type readdir struct {
	nfs3.ReaddirRes
	Entries []nfs3.Entry
	EOF     bool
	plus    bool
}

func (l *readdir) Append(b []byte) []byte {
	b = l.ReaddirRes.Append(b)
	if l.Status != nfs3.OK {
		return b
	}
	for i := range l.Entries {
		l.Entries[i].Plus = l.plus
		b = l.Entries[i].Append(b)
	}
	return nfs3.AppendEnd(b, l.EOF)
}

func (l *readdir) Parse(r *xdr.Reader) {
	l.ReaddirRes.Parse(r)
	l.Entries = nil
	for l.Status == nfs3.OK {
		e := nfs3.Entry{Plus: l.plus}
		more, eof := e.Parse(r)
		if !more {
			l.EOF = eof
			return
		}
		l.Entries = append(l.Entries, e)
	}
}

type dump []mount3.Mounted

func (l *dump) Append(b []byte) []byte { return mount3.AppendDump(b, *l) }
func (l *dump) Parse(r *xdr.Reader)    { *l = mount3.ParseDump(r) }

type exports []mount3.Export

func (l *exports) Append(b []byte) []byte { return mount3.AppendExports(b, *l) }
func (l *exports) Parse(r *xdr.Reader)    { *l = mount3.ParseExports(r) }

var messages = []struct {
	name   string
	ours   func() ours
	theirs theirs
}{
	{"GETATTR3args", func() ours { return &nfs3.FHArgs{} }, st[nfsv3.Getattr3args]()},
	{"GETATTR3res", func() ours { return &nfs3.AttrRes{} }, un(nfsv3.ReadGetattr3res)},
	{"SETATTR3args", func() ours { return &nfs3.SetattrArgs{} }, st[nfsv3.Setattr3args]()},
	{"SETATTR3res", func() ours { return &nfs3.WccRes{} }, un(nfsv3.ReadSetattr3res)},
	{"LOOKUP3args", func() ours { return &nfs3.DirOp{} }, st[nfsv3.Lookup3args]()},
	{"LOOKUP3res", func() ours { return &nfs3.LookupRes{} }, un(nfsv3.ReadLookup3res)},
	{"ACCESS3args", func() ours { return &nfs3.AccessArgs{} }, st[nfsv3.Access3args]()},
	{"ACCESS3res", func() ours { return &nfs3.AccessRes{} }, un(nfsv3.ReadAccess3res)},
	{"READLINK3args", func() ours { return &nfs3.FHArgs{} }, st[nfsv3.Readlink3args]()},
	{"READLINK3res", func() ours { return &bulk{ours: &nfs3.ReadlinkRes{}} }, un(nfsv3.ReadReadlink3res)},
	{"READ3args", func() ours { return &nfs3.RangeArgs{} }, st[nfsv3.Read3args]()},
	{"READ3res", func() ours { return &bulk{ours: &nfs3.ReadRes{}} }, un(nfsv3.ReadRead3res)},
	{"WRITE3args", func() ours { return &bulk{ours: &nfs3.WriteArgs{}} }, st[nfsv3.Write3args]()},
	{"WRITE3res", func() ours { return &nfs3.WriteRes{} }, un(nfsv3.ReadWrite3res)},
	{"CREATE3args", func() ours { return &nfs3.CreateArgs{} }, st[nfsv3.Create3args]()},
	{"CREATE3res", func() ours { return &nfs3.CreateRes{} }, un(nfsv3.ReadCreate3res)},
	{"MKDIR3args", func() ours { return &nfs3.MkdirArgs{} }, st[nfsv3.Mkdir3args]()},
	{"MKDIR3res", func() ours { return &nfs3.CreateRes{} }, un(nfsv3.ReadMkdir3res)},
	{"SYMLINK3args", func() ours { return &bulk{ours: &nfs3.SymlinkArgs{}} }, st[nfsv3.Symlink3args]()},
	{"SYMLINK3res", func() ours { return &nfs3.CreateRes{} }, un(nfsv3.ReadSymlink3res)},
	{"MKNOD3args", func() ours { return &nfs3.MknodArgs{} }, st[nfsv3.Mknod3args]()},
	{"MKNOD3res", func() ours { return &nfs3.CreateRes{} }, un(nfsv3.ReadMknod3res)},
	{"REMOVE3args", func() ours { return &nfs3.DirOp{} }, st[nfsv3.Remove3args]()},
	{"REMOVE3res", func() ours { return &nfs3.WccRes{} }, un(nfsv3.ReadRemove3res)},
	{"RMDIR3args", func() ours { return &nfs3.DirOp{} }, st[nfsv3.Rmdir3args]()},
	{"RMDIR3res", func() ours { return &nfs3.WccRes{} }, un(nfsv3.ReadRmdir3res)},
	{"RENAME3args", func() ours { return &nfs3.RenameArgs{} }, st[nfsv3.Rename3args]()},
	{"RENAME3res", func() ours { return &nfs3.RenameRes{} }, un(nfsv3.ReadRename3res)},
	{"LINK3args", func() ours { return &nfs3.LinkArgs{} }, st[nfsv3.Link3args]()},
	{"LINK3res", func() ours { return &nfs3.LinkRes{} }, un(nfsv3.ReadLink3res)},
	{"READDIR3args", func() ours { return &nfs3.ReaddirArgs{} }, st[nfsv3.Readdir3args]()},
	{"READDIR3res", func() ours { return &readdir{} }, un(nfsv3.ReadReaddir3res)},
	{"READDIRPLUS3args", func() ours { return &nfs3.ReaddirArgs{Plus: true} }, st[nfsv3.Readdirplus3args]()},
	{"READDIRPLUS3res", func() ours { return &readdir{plus: true} }, un(nfsv3.ReadReaddirplus3res)},
	{"FSSTAT3args", func() ours { return &nfs3.FHArgs{} }, st[nfsv3.Fsstat3args]()},
	{"FSSTAT3res", func() ours { return &nfs3.FsstatRes{} }, un(nfsv3.ReadFsstat3res)},
	{"FSINFO3args", func() ours { return &nfs3.FHArgs{} }, st[nfsv3.Fsinfo3args]()},
	{"FSINFO3res", func() ours { return &nfs3.FsinfoRes{} }, un(nfsv3.ReadFsinfo3res)},
	{"PATHCONF3args", func() ours { return &nfs3.FHArgs{} }, st[nfsv3.Pathconf3args]()},
	{"PATHCONF3res", func() ours { return &nfs3.PathconfRes{} }, un(nfsv3.ReadPathconf3res)},
	{"COMMIT3args", func() ours { return &nfs3.RangeArgs{} }, st[nfsv3.Commit3args]()},
	{"COMMIT3res", func() ours { return &nfs3.WriteRes{Commit: true} }, un(nfsv3.ReadCommit3res)},

	{"mountres3", func() ours { return &mount3.MntRes{} }, un(mount.ReadMountres3)},
	{"mountlist", func() ours { return &dump{} }, list(mount.ReadMountlist, mount.WriteMountlist)},
	{"exports", func() ours { return &exports{} }, list(mount.ReadExports, mount.WriteExports)},

	{"nlm4_testargs", func() ours { return &nlm4.TestArgs{} }, st[nlm.Nlm4Testargs]()},
	{"nlm4_testres", func() ours { return &nlm4.TestRes{} }, st[nlm.Nlm4Testres]()},
	{"nlm4_lockargs", func() ours { return &nlm4.LockArgs{} }, st[nlm.Nlm4Lockargs]()},
	{"nlm4_cancargs", func() ours { return &nlm4.CancelArgs{} }, st[nlm.Nlm4Cancargs]()},
	{"nlm4_unlockargs", func() ours { return &nlm4.UnlockArgs{} }, st[nlm.Nlm4Unlockargs]()},
	{"nlm4_res", func() ours { return &nlm4.Res{} }, st[nlm.Nlm4Res]()},
	{"nlm4_shareargs", func() ours { return &nlm4.ShareArgs{} }, st[nlm.Nlm4Shareargs]()},
	{"nlm4_shareres", func() ours { return &nlm4.ShareRes{} }, st[nlm.Nlm4Shareres]()},
	{"nlm4_notify", func() ours { return &nlm4.FreeAllArgs{} }, st[nlm.Nlm4Notify]()},
}

// ascii is what their strings may hold; RFC 4506 section 4.11 says so, and no NFS client or server keeps to it.
var ascii = rapid.ByteRange(1, 127)

// fill draws a value for every field.
func fill(t *rapid.T, name string, v reflect.Value) {
	switch v.Interface().(type) {
	case nfs3.Status:
		v.SetUint(uint64(rapid.SampledFrom([]nfs3.Status{nfs3.OK, nfs3.OK, nfs3.ErrPerm, nfs3.ErrStale, nfs3.ErrJukebox, nfs3.ErrNotSync}).Draw(t, name)))
		return
	case mount3.Status:
		v.SetUint(uint64(rapid.SampledFrom([]mount3.Status{mount3.OK, mount3.OK, mount3.ErrAcces, mount3.ErrServerfault}).Draw(t, name)))
		return
	case nfs3.FileType:
		v.SetUint(uint64(rapid.Uint32Range(1, 7).Draw(t, name)))
		return
	case nfs3.Stable, nfs3.CreateHow, nfs3.TimeHow:
		v.SetUint(uint64(rapid.Uint32Range(0, 2).Draw(t, name)))
		return
	case nlm4.Stat:
		v.SetUint(uint64(rapid.Uint32Range(0, 9).Draw(t, name)))
		return
	case nfs3.OptFH:
		if rapid.Bool().Draw(t, name) {
			v.Set(reflect.ValueOf(nfs3.OptFH(append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, nfs3.MaxFH).Draw(t, name)...))))
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Name != "Plus" && f.Name != "Commit" {
				fill(t, name+"."+f.Name, v.Field(i))
			}
		}
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, name))
	case reflect.Uint32:
		n := rapid.Uint32().Draw(t, name)
		if _, share := v.Interface().(uint32); share && (name == ".Mode" || name == ".Access") && v.CanSet() {
			n %= 4 // fsh4_mode and fsh4_access; for others it is a number like any other
		}
		v.SetUint(uint64(n))
	case reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, name))
	case reflect.String:
		v.SetString(string(rapid.SliceOfN(rapid.ByteRange('!', '~'), 0, 40).Draw(t, name)))
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(uint64(rapid.Byte().Draw(t, name)))
		}
	case reflect.Slice:
		n := rapid.IntRange(0, 5).Draw(t, name)
		if v.Type().Elem().Kind() == reflect.Uint8 {
			from := rapid.Byte()
			if strings.HasSuffix(name, "Name") || strings.HasSuffix(name, "Caller") {
				from = ascii
			}
			v.SetBytes(rapid.SliceOfN(from, 0, nfs3.MaxFH).Draw(t, name))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fill(t, name, v.Index(i))
		}
	default:
		t.Fatalf("no way to fill %s, a %s", name, v.Type())
	}
}

// draw fills a message; a length that announces data follows the data.
func draw(t *rapid.T, x ours) {
	b, is := x.(*bulk)
	if !is {
		fill(t, "", reflect.ValueOf(x).Elem())
		return
	}
	v := reflect.ValueOf(b.ours).Elem()
	fill(t, "", v)
	if s := v.FieldByName("Status"); s.IsValid() && s.Uint() != 0 {
		v.FieldByName(lenField(b.ours)).SetUint(0) // nothing follows a refusal
		return
	}
	b.data = rapid.SliceOfN(ascii, 0, 100).Draw(t, "data") // a path, in some
	v.FieldByName(lenField(b.ours)).SetUint(uint64(len(b.data)))
}

// What we encode they decode, to the last byte, and encode alike; what they encode we decode, and encode alike. A message
// that is cut short satisfies neither.
func TestGeneratedCodecAgrees(t *testing.T) {
	for _, m := range messages {
		t.Run(m.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				x := m.ours()
				draw(t, x)
				msg := x.Append(nil)
				y, n, err := m.theirs(bytes.NewReader(msg))
				if err != nil || n != int64(len(msg)) {
					t.Fatalf("they take %d bytes of %d: %v\n%+v\n%x", n, len(msg), err, x, msg)
				}
				var back bytes.Buffer
				if _, err := y.WriteTo(&back); err != nil || !bytes.Equal(back.Bytes(), msg) {
					t.Fatalf("%+v, %v\n  ours %x\ntheirs %x", x, err, msg, back.Bytes())
				}
				z := m.ours()
				r := xdr.NewReader(back.Bytes())
				z.Parse(&r)
				if r.Err() != nil || r.Len() != 0 || !bytes.Equal(z.Append(nil), msg) {
					t.Fatalf("we take theirs as %+v, with %d bytes left: %v", z, r.Len(), r.Err())
				}
				cut := rapid.IntRange(0, len(msg)-1).Draw(t, "cut")
				r = xdr.NewReader(msg[:cut])
				z = m.ours()
				z.Parse(&r)
				if _, _, err := m.theirs(bytes.NewReader(msg[:cut])); (err == nil) != (r.Err() == nil) {
					t.Fatalf("cut to %d of %d bytes: they say %v, we %v", cut, len(msg), err, r.Err())
				}
			})
		})
	}
}
