package nfs

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// ReadDir lists a directory, sorted by name.
func (v *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	if !fs.ValidPath(name) {
		return nil, pathError("readdir", name, fs.ErrInvalid)
	}
	l, err := v.ReadDirContext(context.Background(), name)
	if err != nil {
		return nil, err
	}
	return entries(l), nil
}

func entries(l []*Info) []fs.DirEntry {
	out := make([]fs.DirEntry, len(l))
	for i, e := range l {
		out[i] = fs.FileInfoToDirEntry(e)
	}
	return out
}

// ReadDirContext lists a directory with the attributes of its files, sorted by name.
func (v *FS) ReadDirContext(ctx context.Context, name string) ([]*Info, error) {
	o, err := v.walk(ctx, name, true)
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	l, err := v.sorted(ctx, o.fh)
	return l, pathError("readdir", name, err)
}

func (v *FS) sorted(ctx context.Context, dir []byte) ([]*Info, error) {
	l, err := v.list(ctx, dir)
	slices.SortFunc(l, func(a, b *Info) int { return cmp.Compare(a.name, b.name) })
	return l, err
}

func (v *FS) list(ctx context.Context, dir []byte) ([]*Info, error) {
	var l []*Info
	var missing []*Info
	var bad error
	a := nfs3.ReaddirArgs{Plus: true, Dir: dir, DirCount: uint32(v.dsize), MaxCount: uint32(v.dsize)}
	seen := map[uint64]bool{0: true} // the cookies asked with
	for eof := false; !eof; {
		var r nfs3.ReaddirRes
		err := v.call(ctx, nfs3.ProcReaddirplus, a.Append(nil), v.dsize, func(x *xdr.Reader) {
			if r.Parse(x); r.Status != nfs3.OK {
				return
			}
			a.Verf = r.Verf
			for {
				e := nfs3.Entry{Plus: true}
				more, end := e.Parse(x)
				if !more {
					eof = end
					return
				}
				a.Cookie = e.Cookie
				if s := string(e.Name); s != "." && s != ".." {
					if err := checkName(s); err != nil {
						bad = err
						return
					}
					i := &Info{name: s, attr: attrOf(&e.Attr.Attr)}
					l = append(l, i)
					if !e.Attr.Set {
						missing = append(missing, i)
					}
				}
			}
		})
		if err = cmp.Or(err, bad); err != nil {
			return nil, err
		}
		if r.Status != nfs3.OK {
			return nil, status(r.Status)
		}
		if !eof && seen[a.Cookie] {
			return nil, errNoProgress // it would be asked for ever
		}
		seen[a.Cookie] = true
	}
	for _, i := range missing {
		// The server may leave attributes out; a name that has gone meanwhile stays with what is known of it: nothing.
		o, err := v.lookup(ctx, dir, i.name)
		switch {
		case err == nil:
			i.attr = o.attr
		case !errors.Is(err, ErrNoEntry) && !errors.Is(err, ErrStale):
			return nil, err // what is of no type is passed over, a directory with all that is in it
		}
	}
	return l, nil
}
