package nfs_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
)

// bad is a client that says in its chunks what it likes.
type bad struct {
	t    *testing.T
	qp   transport.QP
	slab *mem.Slab
	cred oncrpc.Auth
	xid  uint32
}

func (s *server) bad(t *testing.T) *bad {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	slab, err := mem.NewSlab(1 << 20)
	must(t, err)
	must(t, s.opts.Device.Register(slab))
	qp, err := s.opts.Device.NewQP(transport.QPOptions{Sends: 16, Recvs: 16})
	must(t, err)
	b := &bad{t: t, qp: qp, slab: slab, xid: 100}
	sys := oncrpc.Sys{}
	b.cred = oncrpc.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "bad")}
	for i := range 16 {
		_, err := qp.PostRecv([]transport.Recv{{Token: uint64(i), Buf: mem.Span{Slab: slab, Off: i * 4096, Len: 4096}}})
		must(t, err)
	}
	priv := rpcrdma.Private{SendSize: 4096, RecvSize: 4096}
	_, err = s.opts.Device.Dial(ctx, strings.TrimSuffix(strings.TrimPrefix(s.url, "nfs+rdma://"), "/data"), qp, transport.ConnParams{Private: priv.Append(nil), ReadsIn: 16})
	must(t, err)
	t.Cleanup(func() {
		must(t, qp.Close(transport.Reason{}))
		var wcs [16]transport.WC
		for {
			n, err := qp.Poll(wcs[:])
			if err != nil && n == 0 {
				break
			}
			if n == 0 && qp.Wait(ctxOf(t)) != nil {
				break
			}
		}
		must(t, slab.Close())
	})
	return b
}

func ctxOf(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// say sends a message and returns the answer's header and what follows it; ended is true when the connection ended.
func (b *bad) say(msg []byte) (h rpcrdma.Header, rest []byte, ended bool) {
	b.t.Helper()
	out := mem.Span{Slab: b.slab, Off: 512 << 10, Len: len(msg)}
	copy(out.Bytes(), msg)
	if _, err := b.qp.Post([]transport.WR{{Op: transport.OpSend, Token: 1 << 40, Local: []mem.Span{out}}}); err != nil {
		return h, nil, true
	}
	var wcs [16]transport.WC
	for {
		n, err := b.qp.Poll(wcs[:])
		for _, wc := range wcs[:n] {
			if wc.Err != nil {
				return h, nil, true
			}
			if wc.Op == transport.OpRecv {
				var r xdr.Reader
				r.Reset(append([]byte(nil), b.slab.Bytes()[wc.Token*4096:wc.Token*4096+uint64(wc.Len)]...))
				must(b.t, h.Parse(&r))
				return h, r.Rest(), false
			}
		}
		if err != nil {
			return h, nil, true
		}
		if n == 0 {
			if err := b.qp.Wait(ctxOf(b.t)); err != nil {
				return h, nil, true
			}
		}
	}
}

func (b *bad) header() *rpcrdma.Header {
	b.xid++
	h := &rpcrdma.Header{}
	h.Reset()
	h.XID, h.Credits = b.xid, 16
	return h
}

func (b *bad) call(prog, vers, proc uint32, args []byte) []byte {
	c := oncrpc.Call{XID: b.xid, Prog: prog, Vers: vers, Proc: proc, Cred: b.cred}
	return append(c.Append(nil), args...)
}

func TestLyingChunks(t *testing.T) {
	for _, how := range []string{"twin", "iwarp"} {
		t.Run(how, func(t *testing.T) { lyingChunks(t, how) })
	}
}

func lyingChunks(t *testing.T, how string) {
	s := start(t, how, nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), random(100_000, 1), 0o644))
	for i := range 100 {
		must(t, os.WriteFile(filepath.Join(s.dir, strings.Repeat("n", 200)+itoa(uint16(i))), nil, 0o644))
	}
	good := s.mount(t)
	b := s.bad(t)
	m := mount3.PathArgs{Path: []byte("/data")}
	h := b.header()
	_, rest, _ := b.say(append(h.Append(nil), b.call(mount3.Prog, 3, mount3.ProcMnt, m.Append(nil))...))
	r := xdr.NewReader(rest)
	_, err := oncrpc.ParseReply(&r)
	must(t, err)
	var mr mount3.MntRes
	mr.Parse(&r)
	must(t, r.Err())
	l := nfs3.DirOp{Dir: mr.FH, Name: []byte("f")}
	h = b.header()
	_, rest, _ = b.say(append(h.Append(nil), b.call(nfs3.Prog, 3, uint32(nfs3.ProcLookup), l.Append(nil))...))
	r = xdr.NewReader(rest)
	_, err = oncrpc.ParseReply(&r)
	must(t, err)
	var lr nfs3.LookupRes
	lr.Parse(&r)
	must(t, r.Err())

	read := nfs3.RangeArgs{FH: lr.FH, Count: 65536}
	write := nfs3.WriteArgs{FH: lr.FH, Count: 8192, Len: 8192}
	list := nfs3.ReaddirArgs{Dir: mr.FH, MaxCount: 32768}
	readCall := func() []byte { return b.call(nfs3.Prog, 3, uint32(nfs3.ProcRead), read.Append(nil)) }
	writeCall := func() []byte { return b.call(nfs3.Prog, 3, uint32(nfs3.ProcWrite), write.Append(nil)) }
	nowhere := rpcrdma.Segment{Handle: 0xdeadbeef, Len: 65536, Off: 0x1000}
	cases := []struct {
		name  string
		make  func(h *rpcrdma.Header) []byte
		want  uint32 // ERR code, 0 for none
		stat  oncrpc.AcceptStat
		fatal bool // the connection ends, as the fabric's rules say
	}{
		{name: "version 2", want: rpcrdma.ErrVers, make: func(h *rpcrdma.Header) []byte { h.Vers = 2; return append(h.Append(nil), readCall()...) }},
		{name: "RDMA_MSGP", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte { h.Proc = rpcrdma.Msgp; return append(h.Append(nil), readCall()...) }},
		{name: "a write chunk that is too small", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			h.AddWrite(rpcrdma.Segment{Handle: 1, Len: 100})
			return append(h.Append(nil), readCall()...)
		}},
		{name: "no room for the reply", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte { return append(h.Append(nil), readCall()...) }},
		{name: "no room for a listing", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			return append(h.Append(nil), b.call(nfs3.Prog, 3, uint32(nfs3.ProcReaddir), list.Append(nil))...)
		}},
		{name: "a reply chunk that is too small", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			h.SetReply([]rpcrdma.Segment{{Handle: 1, Len: 64}})
			return append(h.Append(nil), readCall()...)
		}},
		{name: "a gigabyte to read", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			msg := writeCall()
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(msg)), Segment: rpcrdma.Segment{Handle: 1, Len: 1 << 30}})
			return append(h.Append(nil), msg...)
		}},
		{name: "an offset that wraps", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			msg := writeCall()
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(msg)), Segment: rpcrdma.Segment{Handle: 1, Len: 8192, Off: ^uint64(0)}})
			return append(h.Append(nil), msg...)
		}},
		{name: "an odd position", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 7, Segment: nowhere})
			return append(h.Append(nil), writeCall()...)
		}},
		{name: "two data items", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 8, Segment: nowhere}, rpcrdma.ReadSegment{Position: 12, Segment: nowhere})
			return append(h.Append(nil), writeCall()...)
		}},
		{name: "a position beyond the message", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte {
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: 1 << 20, Segment: nowhere})
			return append(h.Append(nil), writeCall()...)
		}},
		{name: "a long call that is not there", want: rpcrdma.ErrChunk, make: func(h *rpcrdma.Header) []byte { h.Proc = rpcrdma.Nomsg; return h.Append(nil) }},
		{name: "data that is not there", stat: oncrpc.GarbageArgs, make: func(h *rpcrdma.Header) []byte { return append(h.Append(nil), writeCall()...) }},
	}
	for _, tc := range cases {
		h := b.header()
		got, rest, ended := b.say(tc.make(h))
		switch {
		case ended:
			t.Fatalf("%s: the connection ended", tc.name)
		case got.XID != h.XID:
			t.Errorf("%s: answer to %d, not %d", tc.name, got.XID, h.XID)
		case tc.want != 0 && (got.Proc != rpcrdma.Error || got.ErrCode != tc.want):
			t.Errorf("%s: procedure %d, error %d", tc.name, got.Proc, got.ErrCode)
		case tc.want == 0:
			r := xdr.NewReader(rest)
			if _, err := oncrpc.ParseReply(&r); err == nil || !strings.Contains(err.Error(), tc.stat.String()) {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	}
	// Memory that is not the client's to offer: the fabric ends the connection, and only that one.
	for name, make := range map[string]func(b *bad, h *rpcrdma.Header) []byte{
		"a read chunk that points nowhere": func(b *bad, h *rpcrdma.Header) []byte {
			msg := b.call(nfs3.Prog, 3, uint32(nfs3.ProcWrite), write.Append(nil))
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(msg)), Segment: rpcrdma.Segment{Handle: 0xdeadbeef, Len: 8192, Off: 1}})
			return append(h.Append(nil), msg...)
		},
		"a write chunk that points nowhere": func(b *bad, h *rpcrdma.Header) []byte {
			h.AddWrite(nowhere)
			return append(h.Append(nil), b.call(nfs3.Prog, 3, uint32(nfs3.ProcRead), read.Append(nil))...)
		},
		"no header": func(*bad, *rpcrdma.Header) []byte { return []byte{1, 2, 3} },
		"no call":   func(_ *bad, h *rpcrdma.Header) []byte { return append(h.Append(nil), 1, 2, 3, 4) },
	} {
		x := s.bad(t)
		_, _, ended := x.say(make(x, x.header()))
		for !ended {
			// A Write that the peer refuses may be known only after the Send behind it.
			_, _, ended = x.say(x.header().Append(nil))
		}
		if _, err := good.Stat("f"); err != nil {
			t.Errorf("after %s another client: %v", name, err)
		}
	}
	if got, err := good.ReadFile("f"); err != nil || len(got) != 100_000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// A client that has shown no right has nothing fetched for it: strangers cannot hold the memory that all clients share.
func TestAWriteWithoutTheRightIsRefusedBeforeItsDataIsFetched(t *testing.T) {
	s := start(t, "iwarp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: nfs.Rights{ReadOnly: true}, Async: true})
	must(t, os.WriteFile(filepath.Join(s.dir, "f"), random(1000, 1), 0o644))
	var fh []byte
	{ // the handle, by a client that may look it up
		b := s.bad(t)
		m := mount3.PathArgs{Path: []byte("/data")}
		h := b.header()
		_, rest, _ := b.say(append(h.Append(nil), b.call(mount3.Prog, 3, mount3.ProcMnt, m.Append(nil))...))
		r := xdr.NewReader(rest)
		_, err := oncrpc.ParseReply(&r)
		must(t, err)
		var mr mount3.MntRes
		mr.Parse(&r)
		must(t, r.Err())
		fh = mr.FH
	}
	for want, fh := range map[nfs3.Status][]byte{nfs3.ErrRofs: fh, nfs3.ErrBadhandle: make([]byte, 32)} {
		b := s.bad(t)
		h := b.header()
		write := nfs3.WriteArgs{FH: fh, Count: 1 << 20, Len: 1 << 20}
		msg := b.call(nfs3.Prog, 3, uint32(nfs3.ProcWrite), write.Append(nil))
		// Nothing is bound to this STag: a Read would end the connection.
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(msg)), Segment: rpcrdma.Segment{Handle: 0xdeadbeef, Len: 1 << 20}})
		_, rest, ended := b.say(append(h.Append(nil), msg...))
		if ended {
			t.Errorf("%v: the data was fetched", want)
			continue
		}
		r := xdr.NewReader(rest)
		_, err := oncrpc.ParseReply(&r)
		must(t, err)
		if st := nfs3.Status(r.Uint32()); st != want {
			t.Errorf("status %v, not %v", st, want)
		}
	}
}

// shortChunk is a server that places less than it says.
type shortChunk struct{ rpcserver.Program }

func (p shortChunk) Serve(c *rpcserver.Call) rpcserver.Verdict {
	v := p.Program.Serve(c)
	if v == rpcserver.Done && c.Prog == nfs3.Prog && nfs3.Proc(c.Proc) == nfs3.ProcRead {
		c.SetPayload(4096)
	}
	return v
}

func TestAShortWriteChunkIsNoticed(t *testing.T) {
	for _, how := range []string{"twin", "iwarp"} {
		s := startWrapped(t, how, nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true}, func(p rpcserver.Program) rpcserver.Program { return shortChunk{p} })
		must(t, os.WriteFile(filepath.Join(s.dir, "f"), random(100_000, 1), 0o644))
		if b, err := s.mount(t).ReadFile("f"); err == nil || !strings.Contains(err.Error(), "placed 4096 bytes") {
			t.Errorf("%s: %d bytes, of which 4096 came, %v", how, len(b), err)
		}
	}
}
