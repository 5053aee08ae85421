package files

import (
	"bytes"
	"context"
	"fmt"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// client makes one call at a time, and repeats none.
type client struct {
	c    *rpcclient.Client
	cred rpcclient.Auth
}

func dial(addr string) *client {
	sys := oncrpc.Sys{}
	return &client{c: rpcclient.NewClient(rpcclient.TCP(addr), rpcclient.Options{}), cred: rpcclient.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "failonce")}}
}

// call makes a call; parse takes the result's status first.
func (c *client) call(prog, vers, proc uint32, args []byte, parse func(*xdr.Reader)) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	k := rpcclient.Call{Prog: prog, Vers: vers, Proc: proc, Cred: c.cred, Args: args}
	if err := c.c.Do(ctx, &k); err != nil {
		return err
	}
	res := xdr.NewReader(k.Results)
	parse(&res)
	return res.Err()
}

func (c *client) nfs(p nfs3.Proc, args []byte, parse func(*xdr.Reader)) error {
	return c.call(nfs3.Prog, nfs3.Vers, uint32(p), args, parse)
}

// outcome is nil, a status, or another error where there was no answer.
func outcome(err error, st nfs3.Status) error {
	if err != nil {
		return err
	}
	if st != nfs3.OK {
		return st
	}
	return nil
}

func (c *client) mount(path string) ([]byte, error) {
	a := mount3.PathArgs{Path: []byte(path)}
	var r mount3.MntRes
	err := c.call(mount3.Prog, mount3.Vers, mount3.ProcMnt, a.Append(nil), r.Parse)
	if err == nil && r.Status != mount3.OK {
		err = r.Status
	}
	return bytes.Clone(r.FH), err
}

func (c *client) lookup(dir []byte, name string) ([]byte, error) {
	a := nfs3.DirOp{Dir: dir, Name: []byte(name)}
	var r nfs3.LookupRes
	err := c.nfs(nfs3.ProcLookup, a.Append(nil), r.Parse)
	return bytes.Clone(r.FH), outcome(err, r.Status)
}

func (c *client) getattr(fh []byte) (nfs3.Attr, error) {
	a := nfs3.FHArgs{FH: fh}
	var r nfs3.AttrRes
	err := c.nfs(nfs3.ProcGetattr, a.Append(nil), r.Parse)
	return r.Attr, outcome(err, r.Status)
}

func (c *client) setattr(fh []byte, s nfs3.SetAttr) error {
	a := nfs3.SetattrArgs{FH: fh, Attr: s}
	var r nfs3.WccRes
	err := c.nfs(nfs3.ProcSetattr, a.Append(nil), r.Parse)
	return outcome(err, r.Status)
}

func (c *client) access(fh []byte, want uint32) error {
	a := nfs3.AccessArgs{FH: fh, Access: want}
	var r nfs3.AccessRes
	err := c.nfs(nfs3.ProcAccess, a.Append(nil), r.Parse)
	if err = outcome(err, r.Status); err == nil && r.Access != want {
		return fmt.Errorf("%w: ACCESS grants %x of %x", errWrong, r.Access, want)
	}
	return err
}

func (c *client) readlink(fh []byte, want string) error {
	a := nfs3.FHArgs{FH: fh}
	var r nfs3.ReadlinkRes
	var got []byte
	err := c.nfs(nfs3.ProcReadlink, a.Append(nil), func(x *xdr.Reader) {
		if r.Parse(x); r.Status == nfs3.OK {
			got = x.Fixed(int(r.Len))
		}
	})
	if err = outcome(err, r.Status); err == nil && string(got) != want {
		return fmt.Errorf("%w: a link to %q", errWrong, got)
	}
	return err
}

// read reads n bytes, as one call; the answer may be short, but not empty, and is all as want.
func (c *client) read(fh []byte, off uint64, n int, want byte) error {
	for n > 0 {
		a := nfs3.RangeArgs{FH: fh, Offset: off, Count: uint32(n)}
		var r nfs3.ReadRes
		var data []byte
		err := c.nfs(nfs3.ProcRead, a.Append(nil), func(x *xdr.Reader) {
			if r.Parse(x); r.Status == nfs3.OK {
				data = bytes.Clone(x.Fixed(int(r.Len)))
			}
		})
		if err = outcome(err, r.Status); err != nil {
			return err
		}
		if len(data) == 0 || len(data) != int(r.Count) || !bytes.Equal(data, bytes.Repeat([]byte{want}, len(data))) {
			return fmt.Errorf("%w: READ of %d bytes: %d, count %d, end %v", errWrong, n, len(data), r.Count, r.EOF)
		}
		if r.EOF && len(data) < n {
			return fmt.Errorf("%w: READ says that the file ends %d bytes before its end", errWrong, n-len(data))
		}
		off, n = off+uint64(len(data)), n-len(data)
	}
	return nil
}

// write writes once; count is how much of it was taken.
func (c *client) write(fh []byte, off uint64, data []byte, how nfs3.Stable) (r nfs3.WriteRes, err error) {
	a := nfs3.WriteArgs{FH: fh, Offset: off, Count: uint32(len(data)), Stable: how, Len: uint32(len(data))}
	args := append(a.Append(nil), data...)
	err = c.nfs(nfs3.ProcWrite, append(args, make([]byte, xdr.Pad(len(data)))...), r.Parse)
	if err = outcome(err, r.Status); err == nil && r.Stable < how {
		err = fmt.Errorf("%w: WRITE is %v, asked for %v", errWrong, r.Stable, how)
	}
	return r, err
}

// writeAll writes all, as RFC 1813 section 3.3.7 wants it of clients that are told of less.
func (c *client) writeAll(fh []byte, off uint64, data []byte, how nfs3.Stable) (v nfs3.Verf, err error) {
	for len(data) > 0 {
		r, err := c.write(fh, off, data, how)
		if err != nil {
			return v, err
		}
		if r.Count == 0 || int(r.Count) > len(data) {
			return v, fmt.Errorf("%w: WRITE of %d bytes took %d", errWrong, len(data), r.Count)
		}
		off, data, v = off+uint64(r.Count), data[r.Count:], r.Verf
	}
	return v, nil
}

func (c *client) commit(fh []byte) (nfs3.Verf, error) {
	a := nfs3.RangeArgs{FH: fh}
	r := nfs3.WriteRes{Commit: true}
	err := c.nfs(nfs3.ProcCommit, a.Append(nil), r.Parse)
	return r.Verf, outcome(err, r.Status)
}

func (c *client) made(p nfs3.Proc, args []byte) error {
	var r nfs3.CreateRes
	err := c.nfs(p, args, r.Parse)
	return outcome(err, r.Status)
}

// changed is for procedures whose answer says no more than whether it was done.
func (c *client) changed(p nfs3.Proc, args []byte) error {
	var st nfs3.Status
	err := c.nfs(p, args, func(x *xdr.Reader) { st = nfs3.Status(x.Uint32()) })
	return outcome(err, st)
}

// list reads a directory to its end; the names have to be all of want.
func (c *client) list(dir []byte, plus bool, want []string) error {
	got := map[string]bool{}
	var at nfs3.Verf
	var cookie uint64
	for {
		a := nfs3.ReaddirArgs{Plus: plus, Dir: dir, Cookie: cookie, Verf: at, DirCount: 8192, MaxCount: 8192}
		p := nfs3.ProcReaddir
		if plus {
			p = nfs3.ProcReaddirplus
		}
		var r nfs3.ReaddirRes
		end, n := false, 0
		err := c.nfs(p, a.Append(nil), func(x *xdr.Reader) {
			if r.Parse(x); r.Status != nfs3.OK {
				return
			}
			at = r.Verf
			for {
				e := nfs3.Entry{Plus: plus}
				more, eof := e.Parse(x)
				if !more {
					end = eof
					return
				}
				n++
				got[string(e.Name)], cookie = true, e.Cookie
			}
		})
		if err = outcome(err, r.Status); err != nil {
			return err
		}
		if end {
			break
		}
		if n == 0 {
			return fmt.Errorf("%w: a part of a listing with no names that is not its end", errWrong)
		}
	}
	for _, name := range want {
		if !got[name] {
			return fmt.Errorf("%w: the listing lacks %s", errWrong, name)
		}
	}
	return nil
}

func (c *client) lock(fh []byte, svid uint32) error {
	a := nlm4.LockArgs{Cookie: []byte{1}, Exclusive: true, Lock: nlm4.Lock{Caller: []byte("failonce"), FH: fh, Owner: []byte("o"), SVID: svid, Len: 10}}
	var r nlm4.Res
	err := c.call(nlm4.Prog, nlm4.Vers, nlm4.ProcLock, a.Append(nil), r.Parse)
	if err == nil && r.Stat != nlm4.Granted {
		err = lockError(r.Stat)
	}
	return err
}

func (c *client) unlock(fh []byte, svid uint32) error {
	a := nlm4.UnlockArgs{Cookie: []byte{1}, Lock: nlm4.Lock{Caller: []byte("failonce"), FH: fh, Owner: []byte("o"), SVID: svid, Len: 10}}
	var r nlm4.Res
	err := c.call(nlm4.Prog, nlm4.Vers, nlm4.ProcUnlock, a.Append(nil), r.Parse)
	if err == nil && r.Stat != nlm4.Granted {
		err = lockError(r.Stat)
	}
	return err
}

type lockError nlm4.Stat

func (e lockError) Error() string { return fmt.Sprintf("NLM status %d", uint32(e)) }
