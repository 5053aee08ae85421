package iwarp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// storage plays a target: each Send names a window, is answered by a Write to it and a Send with Invalidate.
func (e *end) storage(size, depth int, m mem.Span) error {
	ctx := testCtx(e.t)
	wrs := make([]transport.WR, 0, 2*depth)
	local := make([]mem.Span, 2*depth)
	rcv := make([]transport.Recv, 0, depth)
	for i := range depth {
		local[2*i], local[2*i+1] = m.Cut(128*depth, size), m.Cut(128*i, 76)
	}
	for {
		n, err := e.qp.Poll(e.wc[:])
		if err != nil {
			return err
		}
		if n == 0 {
			if err := e.qp.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		wrs, rcv = wrs[:0], rcv[:0]
		for _, wc := range e.wc[:n] {
			if wc.Op != transport.OpRecv || wc.Err != nil {
				continue
			}
			i := int(wc.Token)
			b := m.Cut(128*i, 128).Bytes()
			r := transport.Remote{STag: binary.BigEndian.Uint32(b), Off: binary.BigEndian.Uint64(b[4:])}
			rcv = append(rcv, transport.Recv{Token: wc.Token, Buf: m.Cut(128*i, 128)})
			wrs = append(wrs, transport.WR{Op: transport.OpWrite, Local: local[2*i : 2*i+1], Remote: r},
				transport.WR{Op: transport.OpSendInv, Local: local[2*i+1 : 2*i+2], Inv: r.STag})
		}
		if _, err := e.qp.PostRecv(rcv); err != nil {
			return err
		}
		if _, err := e.qp.Post(wrs); err != nil {
			return err
		}
	}
}

// load keeps depth I/Os of size bytes going, total in all.
func (e *end) load(size, depth, total int, m mem.Span, wins []transport.Window) error {
	ctx := testCtx(e.t)
	local := make([]mem.Span, 2*depth)
	rcv := make([]transport.Recv, depth)
	wrs := make([]transport.WR, 0, 2*depth)
	slot := make(map[uint32]int, depth)
	byTag := func(t uint32) int { return slot[t] }
	start := func(i int) error {
		if _, err := e.qp.Post([]transport.WR{{Op: transport.OpBind, Window: wins[i], Local: local[2*i : 2*i+1], Access: transport.RemoteWrite}}); err != nil {
			return err
		}
		b, r := local[2*i+1].Bytes(), wins[i].Remote()
		binary.BigEndian.PutUint32(b, r.STag)
		binary.BigEndian.PutUint64(b[4:], r.Off)
		slot[r.STag] = i
		wrs = append(wrs, transport.WR{Op: transport.OpSend, Local: local[2*i+1 : 2*i+2]})
		return nil
	}
	for i := range depth {
		local[2*i], local[2*i+1] = m.Cut(256*depth+i*size, size), m.Cut(256*i, 76)
		rcv[i] = transport.Recv{Token: uint64(i), Buf: m.Cut(256*i+128, 128)}
	}
	if _, err := e.qp.PostRecv(rcv); err != nil {
		return err
	}
	started, done := 0, 0
	for i := 0; i < depth && started < total; i++ {
		if err := start(i); err != nil {
			return err
		}
		started++
	}
	one := make([]transport.Recv, 0, depth)
	for done < total {
		if len(wrs) > 0 {
			if _, err := e.qp.Post(wrs); err != nil {
				return err
			}
			wrs = wrs[:0]
		}
		n, err := e.qp.Poll(e.wc[:])
		if err != nil {
			return err
		}
		if n == 0 {
			if err := e.qp.Wait(ctx); err != nil {
				return err
			}
			continue
		}
		one = one[:0]
		for _, wc := range e.wc[:n] {
			if wc.Op != transport.OpRecv {
				continue
			}
			i := byTag(wc.Inv)
			delete(slot, wc.Inv)
			one = append(one, rcv[wc.Token])
			done++
			if started < total {
				if err := start(i); err != nil {
					return err
				}
				started++
			}
		}
		if _, err := e.qp.PostRecv(one); err != nil {
			return err
		}
	}
	return nil
}

type rig struct {
	a, b *end
	am   mem.Span
	wins []transport.Window
	errs chan error
}

func newRig(t testing.TB, o Options, size, depth int) *rig {
	a, b := pair(t, pairOptions{a: o, b: o, qo: transport.QPOptions{Sends: 4 * depth, Recvs: 2 * depth}})
	r := &rig{a: a, b: b, am: slab(t, 256*depth+size*depth), errs: make(chan error, 1)}
	bm := slab(t, 128*depth+size)
	var rs []transport.Recv
	for i := range depth {
		r.wins = append(r.wins, a.window())
		rs = append(rs, transport.Recv{Token: uint64(i), Buf: bm.Cut(128*i, 128)})
	}
	if _, err := b.qp.PostRecv(rs); err != nil {
		t.Fatal(err)
	}
	go func() { r.errs <- b.storage(size, depth, bm) }()
	t.Cleanup(func() {
		_ = a.qp.Close(transport.Reason{})
		<-r.errs
	})
	return r
}

func BenchmarkRead(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{4 << 10, 32}, {128 << 10, 16}, {1 << 20, 8}} {
		b.Run(fmt.Sprintf("%dK-%d", c.size>>10, c.depth), func(b *testing.B) {
			r := newRig(b, Options{}, c.size, c.depth)
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			if err := r.a.load(c.size, c.depth, b.N, r.am, r.wins); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			s, v := r.a.qp.Stats(), r.b.qp.Stats()
			n := float64(b.N)
			b.ReportMetric(float64(s.Reads)/n, "creads/op")
			b.ReportMetric(float64(s.Writes)/n, "cwrites/op")
			b.ReportMetric(float64(v.Reads)/n, "sreads/op")
			b.ReportMetric(float64(v.Writes)/n, "swrites/op")
			b.ReportMetric(float64(v.FlusherRuns)/n, "flush/op")
		})
	}
}

// BenchmarkRaw is the same exchange with nothing but TCP: 48-byte requests, answered with size bytes, batched.
func BenchmarkRaw(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{4 << 10, 32}, {128 << 10, 16}, {1 << 20, 8}} {
		b.Run(fmt.Sprintf("%dK-%d", c.size>>10, c.depth), func(b *testing.B) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				s, err := ln.Accept()
				if err != nil {
					return
				}
				defer func() { _ = s.Close() }()
				in := make([]byte, 48*c.depth)
				out := make([]byte, c.size*c.depth)
				have := 0
				for {
					n, err := s.Read(in[have:])
					if err != nil {
						return
					}
					have += n
					k := have / 48
					if _, err := s.Write(out[:k*c.size]); err != nil {
						return
					}
					have -= 48 * k
				}
			}()
			s, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(c.size))
			b.ResetTimer()
			req := make([]byte, 48*c.depth)
			buf := make([]byte, c.size*c.depth)
			sent, got, need := 0, 0, b.N
			sent = min(c.depth, need)
			if _, err := s.Write(req[:48*sent]); err != nil {
				b.Fatal(err)
			}
			for bytes := 0; got < need; {
				n, err := s.Read(buf[:max(c.size, min(len(buf), 256<<10))])
				if err != nil && !errors.Is(err, io.EOF) {
					b.Fatal(err)
				}
				bytes += n
				k := bytes / c.size
				bytes -= k * c.size
				got += k
				if k = min(k, need-sent); k > 0 {
					if _, err := s.Write(req[:48*k]); err != nil {
						b.Fatal(err)
					}
					sent += k
				}
			}
			b.StopTimer()
			_ = s.Close()
			_ = ln.Close()
			<-done
		})
	}
}
