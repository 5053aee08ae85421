//go:build !race

package nfs_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
)

// allocatesNothing fails unless a call costs no allocation. Now and then the collector empties the pools, and what they held is
// made again: the best of ten counts.
func allocatesNothing(t *testing.T, once func()) {
	t.Helper()
	const calls = 400
	least := uint64(calls)
	for range 10 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			once()
		}
		runtime.ReadMemStats(&after)
		if least = min(least, after.Mallocs-before.Mallocs); least <= calls/10 {
			return
		}
	}
	t.Errorf("%d allocations in %d calls", least, calls)
}

// A READ or a WRITE over TCP costs the server no allocation, lent or read, at once, by a worker or in a lane, and so do the calls that
// clients make most. The client is this test, and allocates nothing either.
func TestDataPathDoesNotAllocate(t *testing.T) {
	const size = 4 << 20
	for name, c := range map[string]struct {
		opt   rpcserver.Options
		proc  nfs3.Proc
		count int
	}{
		"READ 4 KiB":               {proc: nfs3.ProcRead, count: 4 << 10},
		"READ 4 KiB by workers":    {proc: nfs3.ProcRead, count: 4 << 10, opt: rpcserver.Options{NoInline: true}},
		"READ 128 KiB":             {proc: nfs3.ProcRead, count: 128 << 10},
		"READ 1 MiB lent":          {proc: nfs3.ProcRead, count: 1 << 20},
		"READ 1 MiB lent, workers": {proc: nfs3.ProcRead, count: 1 << 20, opt: rpcserver.Options{NoInline: true}},
		"READ 1 MiB not lent":      {proc: nfs3.ProcRead, count: 1 << 20, opt: rpcserver.Options{NoLoan: true}},
		"WRITE 4 KiB":              {proc: nfs3.ProcWrite, count: 4 << 10},
		"WRITE 128 KiB":            {proc: nfs3.ProcWrite, count: 128 << 10},
		"WRITE 1 MiB":              {proc: nfs3.ProcWrite, count: 1 << 20},
		"GETATTR":                  {proc: nfs3.ProcGetattr},
		"ACCESS":                   {proc: nfs3.ProcAccess},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "tcp", nfs.Options{}, c.opt, nfs.Export{Rights: open})
			must(t, os.WriteFile(filepath.Join(s.dir, "f"), make([]byte, size), 0o666))
			must(t, os.Chmod(filepath.Join(s.dir, "f"), 0o666)) // whatever the umask says
			v := s.mount(t)
			o, err := v.Self().Lookup(context.Background(), v.Root(), "f")
			must(t, err)
			nc, err := net.Dial("tcp", s.hostPort(t))
			must(t, err)
			defer func() { _ = nc.Close() }()
			must(t, nc.SetDeadline(time.Now().Add(patience)))
			sys := oncrpc.Sys{UID: 1000, GID: 1000} // another's identity, where the server may take it
			h := oncrpc.Call{Prog: nfs3.Prog, Vers: nfs3.Vers, Proc: uint32(c.proc), Cred: oncrpc.Auth{Flavor: oncrpc.AuthSys, Body: sys.Append(nil, 1, "test")}}
			req := h.Append(make([]byte, oncrpc.MarkLen))
			switch c.proc {
			case nfs3.ProcGetattr:
				req = (&nfs3.FHArgs{FH: o.FH}).Append(req)
			case nfs3.ProcAccess:
				req = append((&nfs3.FHArgs{FH: o.FH}).Append(req), 0, 0, 0, 0x3f)
			case nfs3.ProcRead:
				req = (&nfs3.RangeArgs{FH: o.FH, Offset: 1 << 20, Count: uint32(c.count)}).Append(req)
			default:
				req = (&nfs3.WriteArgs{FH: o.FH, Offset: 1 << 20, Count: uint32(c.count), Len: uint32(c.count)}).Append(req)
				req = append(req, make([]byte, c.count)...)
			}
			oncrpc.PutMark(req, len(req)-oncrpc.MarkLen, true)
			answer := make([]byte, c.count+4096)
			var fault error
			got := 0
			once := func() {
				if _, err := nc.Write(req); err != nil {
					fault = err
				}
				if _, err := io.ReadFull(nc, answer[:oncrpc.MarkLen]); err != nil {
					fault = err
				}
				n, _ := oncrpc.ParseMark(answer)
				if got = n; n > len(answer) || fault != nil {
					return
				}
				if _, err := io.ReadFull(nc, answer[:n]); err != nil {
					fault = err
				}
			}
			for range 50 {
				once()
			}
			allocatesNothing(t, once)
			must(t, fault)
			if c.proc == nfs3.ProcRead && got < c.count {
				t.Fatalf("an answer of %d bytes", got)
			}
		})
	}
}

// The same over RDMA, where READ is placed into a write chunk and WRITE fetched from a read chunk.
func TestDataPathDoesNotAllocateOverRDMA(t *testing.T) {
	const count = 128 << 10
	for _, proc := range []nfs3.Proc{nfs3.ProcRead, nfs3.ProcWrite} {
		t.Run(proc.String(), func(t *testing.T) {
			s := start(t, "iwarp", nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open})
			must(t, os.WriteFile(filepath.Join(s.dir, "f"), make([]byte, 1<<20), 0o666))
			v := s.mount(t)
			o, err := v.Self().Lookup(context.Background(), v.Root(), "f")
			must(t, err)
			b := s.bad(t)
			w, err := b.qp.NewWindow()
			must(t, err)
			args, access := (&nfs3.RangeArgs{FH: o.FH, Count: count}).Append(nil), transport.RemoteWrite
			if proc == nfs3.ProcWrite {
				args, access = (&nfs3.WriteArgs{FH: o.FH, Count: count, Len: count}).Append(nil), transport.RemoteRead
			}
			msg := b.call(nfs3.Prog, nfs3.Vers, uint32(proc), args)
			data := [1]mem.Span{{Slab: b.slab, Off: 256 << 10, Len: count}}
			var out [1]mem.Span
			var wr [1]transport.WR
			var recv [1]transport.Recv
			var wcs [16]transport.WC
			var h rpcrdma.Header
			ctx := ctxOf(t)
			var fault error
			until := func(op transport.Op) {
				for fault == nil {
					n, err := b.qp.Poll(wcs[:])
					found := false
					for _, wc := range wcs[:n] {
						if wc.Err != nil {
							fault = wc.Err
						}
						if wc.Op == transport.OpRecv {
							recv[0] = transport.Recv{Token: wc.Token, Buf: mem.Span{Slab: b.slab, Off: int(wc.Token) * 4096, Len: 4096}}
							_, fault = b.qp.PostRecv(recv[:])
						}
						found = found || wc.Op == op
					}
					switch {
					case found:
						return
					case err != nil:
						fault = err
					case n == 0:
						fault = b.qp.Wait(ctx)
					}
				}
			}
			post := func(x transport.WR) {
				wr[0] = x
				if _, err := b.qp.Post(wr[:]); err != nil {
					fault = err
				}
			}
			once := func() {
				post(transport.WR{Op: transport.OpBind, Local: data[:], Window: w, Access: access})
				seg := rpcrdma.Segment{Handle: w.Remote().STag, Off: w.Remote().Off, Len: count}
				h.Reset()
				h.XID, h.Credits = b.xid, 16
				if proc == nfs3.ProcWrite {
					h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: uint32(len(msg)), Segment: seg})
				} else {
					h.AddWrite(seg)
				}
				buf := append(h.Append(b.slab.Bytes()[512<<10:512<<10]), msg...)
				out[0] = mem.Span{Slab: b.slab, Off: 512 << 10, Len: len(buf)}
				post(transport.WR{Op: transport.OpSend, Token: 1 << 40, Local: out[:]})
				until(transport.OpRecv)
				post(transport.WR{Op: transport.OpInvalidate, Flags: transport.Signaled, Window: w})
				until(transport.OpInvalidate)
			}
			for range 50 {
				once()
			}
			allocatesNothing(t, once)
			must(t, fault)
		})
	}
}
