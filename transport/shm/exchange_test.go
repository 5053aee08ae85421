package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/race"
	"github.com/sluice-storage/sluice/transport"
)

// rig is an initiator and a target that answers each Send with a Write to the STag in it, and a Send that invalidates that.
type rig struct {
	a, b  *end
	depth int
	size  int
	am    mem.Span
	wins  []transport.Window
	tags  []uint32 // of wins
	over  chan error

	wrs   []transport.WR
	local []mem.Span
	one   []transport.Recv
}

const rigLine = 128 // of a request or an answer

func newRig(t testing.TB, o Options, size, depth int) *rig {
	t.Helper()
	qo := transport.QPOptions{Sends: 4*depth + 16, Recvs: depth + 8}
	r := &rig{depth: depth, size: size, over: make(chan error, 1)}
	r.a, r.b = pair(t, pairOptions{a: o, b: o, qo: qo})
	r.am = r.a.slab(depth * (2*rigLine + size))
	bm := r.b.slab(depth*2*rigLine + size)
	fill(bm.Bytes()[depth*2*rigLine:], 7)
	for i := range depth {
		r.b.recv(uint64(i), bm.Cut(i*rigLine, rigLine))
		r.a.recv(uint64(i), r.line(depth+i))
		r.wins = append(r.wins, r.a.window())
		r.local = append(r.local, r.line(i).Cut(0, 76), r.buf(i))
	}
	r.tags = make([]uint32, depth)
	go func() { r.over <- r.b.serve(bm, depth, size) }()
	t.Cleanup(func() {
		_ = r.a.qp.Close(transport.Reason{})
		if err := <-r.over; !errors.Is(err, transport.ErrClosed) {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) line(i int) mem.Span { return r.am.Cut(i*rigLine, rigLine) }
func (r *rig) buf(i int) mem.Span  { return r.am.Cut(2*r.depth*rigLine+i*r.size, r.size) }

// serve is the target.
func (e *end) serve(m mem.Span, depth, size int) error {
	ctx := context.Background() // the queue pair's end is its end
	data := []mem.Span{m.Cut(2*depth*rigLine, size)}
	answers := make([]mem.Span, depth)
	for i := range answers {
		answers[i] = m.Cut((depth+i)*rigLine, 76)
	}
	var wrs []transport.WR
	var rcv []transport.Recv
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
			b := m.Cut(i*rigLine, rigLine)
			at := transport.Remote{STag: binary.LittleEndian.Uint32(b.Bytes()), Off: binary.LittleEndian.Uint64(b.Bytes()[4:])}
			rcv = append(rcv, transport.Recv{Token: wc.Token, Buf: b})
			wrs = append(wrs, transport.WR{Op: transport.OpWrite, Local: data, Remote: at},
				transport.WR{Op: transport.OpSendInv, Local: answers[i : i+1], Inv: at.STag})
		}
		if _, err := e.qp.PostRecv(rcv); err != nil {
			return err
		}
		if _, err := e.qp.Post(wrs); err != nil {
			return err
		}
	}
}

// ask begins the exchange of a slot.
func (r *rig) ask(i int) error {
	bind := [1]transport.WR{{Op: transport.OpBind, Window: r.wins[i], Local: r.local[2*i+1 : 2*i+2], Access: transport.RemoteWrite}}
	if _, err := r.a.qp.Post(bind[:]); err != nil {
		return err
	}
	b, at := r.local[2*i].Bytes(), r.wins[i].Remote()
	binary.LittleEndian.PutUint32(b, at.STag)
	binary.LittleEndian.PutUint64(b[4:], at.Off)
	r.tags[i] = at.STag
	r.wrs = append(r.wrs, transport.WR{Op: transport.OpSend, Local: r.local[2*i : 2*i+1]})
	return nil
}

// run makes total exchanges, depth of them at a time.
func (r *rig) run(total int) error {
	ctx := testCtx(r.a.t)
	started, done := 0, 0
	for ; started < min(r.depth, total); started++ {
		if err := r.ask(started); err != nil {
			return err
		}
	}
	for done < total {
		if len(r.wrs) > 0 {
			if _, err := r.a.qp.Post(r.wrs); err != nil {
				return err
			}
			r.wrs = r.wrs[:0]
		}
		n, err := r.a.qp.Poll(r.a.wc[:])
		if err != nil {
			return err
		}
		if n == 0 {
			if err := r.a.qp.Wait(ctx); err != nil {
				return err
			}
		}
		r.one = r.one[:0]
		for _, wc := range r.a.wc[:n] {
			if wc.Op != transport.OpRecv {
				continue
			}
			r.one = append(r.one, transport.Recv{Token: wc.Token, Buf: r.line(r.depth + int(wc.Token))})
			i := 0
			for r.tags[i] != wc.Inv {
				i++
			}
			r.tags[i] = 0
			if done++; started < total {
				started++
				if err := r.ask(i); err != nil {
					return err
				}
			}
		}
		if _, err := r.a.qp.PostRecv(r.one); err != nil {
			return err
		}
	}
	return nil
}

// Steady state allocates nothing in both ends together, and what came is what was sent.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, c := range []struct{ size, depth, n int }{{4 << 10, 16, 5000}, {128 << 10, 4, 1000}, {100, 1, 2000}} {
		for _, spin := range []time.Duration{0, -1} {
			r := newRig(t, Options{Spin: spin}, c.size, c.depth)
			if err := r.run(4 * c.depth); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			if err := r.run(c.n); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			// run itself and the test's own set-up allocate a few times.
			if got := after.Mallocs - before.Mallocs; !race.Enabled && float64(got) > 100+0.01*float64(c.n) {
				t.Errorf("%d bytes at depth %d: %d allocations in %d exchanges", c.size, c.depth, got, c.n)
			}
			for i := range c.depth {
				same(t, fmt.Sprint("buffer ", i), r.buf(i).Bytes(), filled(c.size, 7))
			}
			want := uint64(0)
			if c.size > inlineMax {
				want = uint64(c.size * (c.n + 4*c.depth))
			}
			if got := r.a.qp.Stats().Copied; got != want {
				t.Errorf("%d bytes at depth %d: %d bytes of payload were copied, want %d: each once", c.size, c.depth, got, want)
			}
		}
	}
}

func BenchmarkExchange(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{512, 1}, {4 << 10, 1}, {4 << 10, 32}, {128 << 10, 1}, {128 << 10, 16}} {
		b.Run(fmt.Sprintf("%dB/depth%d", c.size, c.depth), func(b *testing.B) {
			r := newRig(b, Options{}, c.size, c.depth)
			if err := r.run(4 * c.depth); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(c.size))
			b.ReportAllocs()
			b.ResetTimer()
			if err := r.run(b.N); err != nil {
				b.Fatal(err)
			}
			b.StopTimer()
			s := r.a.qp.Stats()
			add(&s, r.b.qp.Stats())
			b.ReportMetric(float64(s.Bells)/float64(b.N), "bells/op")
		})
	}
}
