package iwarp

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/race"
	"github.com/sluice-storage/sluice/transport"
)

// Steady state allocates nothing, on real sockets, in both ends together.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, c := range []struct{ size, depth, n int }{{4 << 10, 16, 4000}, {128 << 10, 4, 500}, {100, 1, 1000}} {
		r := newRig(t, Options{}, c.size, c.depth)
		if err := r.a.load(c.size, c.depth, 4*c.depth, r.am, r.wins); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		if err := r.a.load(c.size, c.depth, c.n, r.am, r.wins); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		// load itself and the test's own set-up allocate a few dozen times.
		if got := after.Mallocs - before.Mallocs; !race.Enabled && float64(got) > 150+0.01*float64(c.n) {
			t.Errorf("%d bytes at depth %d: %d allocations in %d exchanges", c.size, c.depth, got, c.n)
		}
	}
}

// Payload of 8 KiB and more is never copied in this package, on loopback's large FPDUs.
func TestLargePayloadIsNotCopied(t *testing.T) {
	for _, c := range []struct{ size, depth, n int }{{128 << 10, 4, 300}, {1 << 20, 2, 50}, {32 << 10, 8, 300}} {
		r := newRig(t, Options{}, c.size, c.depth)
		if err := r.a.load(c.size, c.depth, c.n, r.am, r.wins); err != nil {
			t.Fatal(err)
		}
		for _, s := range []Stats{r.a.qp.Stats(), r.b.qp.Stats()} {
			for i := CopyClass(8<<10 + 1); i < len(s.CopiedIn); i++ {
				if s.CopiedIn[i]+s.CopiedOut[i] != 0 {
					t.Errorf("%d bytes: copied in %v, out %v", c.size, s.CopiedIn, s.CopiedOut)
				}
			}
		}
	}
}

// The answers to Reads are placed without a copy even when they come in TCP segments.
func TestReadResponsesInSegmentsAreNotCopied(t *testing.T) {
	o := Options{FPDU: FPDUSegment, CRC: CRCOn}
	a, b := pair(t, pairOptions{a: o, b: o})
	const size, reads = 128 << 10, 8
	am, bm := slab(t, reads*size), slab(t, size+64)
	fill(bm.Bytes(), 6)
	w := b.window()
	b.recv(1, bm.Cut(size, 64))
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{am.Cut(0, 1)}})
	b.ok(transport.OpRecv, 1)
	b.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{bm.Cut(0, size)}, Access: transport.RemoteRead})
	done := make(chan error, 1)
	go func() { done <- b.drain() }()
	for i := range reads {
		a.post(transport.WR{Op: transport.OpRead, Token: uint64(i), Flags: transport.Signaled, Local: []mem.Span{am.Cut(i*size, size)}, Remote: w.Remote()})
	}
	for i := range reads {
		a.ok(transport.OpRead, uint64(i))
		if !bytes.Equal(am.Cut(i*size, size).Bytes(), bm.Cut(0, size).Bytes()) {
			t.Fatalf("Read %d differs", i)
		}
	}
	s := a.qp.Stats()
	for i, n := range s.CopiedIn {
		if n != 0 {
			t.Errorf("class %d: %d bytes copied", i, n)
		}
	}
	if s.Reads > s.FPDUsIn || s.TakenBack != 0 {
		t.Errorf("%d system calls for %d FPDUs, %d bytes misplaced", s.Reads, s.FPDUsIn, s.TakenBack)
	}
	_ = a.qp.Close(transport.Reason{})
	if err := <-done; !errors.Is(err, transport.ErrClosed) {
		t.Fatal(err)
	}
}

// Posts of many goroutines, a slow reader and Close in the middle of it.
func TestCloseAmidTraffic(t *testing.T) {
	const posters = 4
	for range 10 {
		a, b := pair(t, pairOptions{qo: transport.QPOptions{Sends: 64, Recvs: 64}})
		am, bm := slab(t, 1<<20), slab(t, 1<<20)
		w := b.window()
		a.recv(1, am.Cut(0, 64))
		b.recv(1, bm.Cut(0, 64))
		a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{am.Cut(0, 1)}})
		b.ok(transport.OpRecv, 1)
		b.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{bm}, Access: transport.RemoteWrite | transport.RemoteRead})
		var wg sync.WaitGroup
		var once sync.Once
		for p := range posters {
			wg.Go(func() {
				for i := uint64(0); ; i++ {
					op := transport.OpWrite
					if i%8 == 7 {
						op = transport.OpRead
					}
					_, err := a.qp.Post([]transport.WR{{Op: op, Token: uint64(p)<<32 | i, Flags: transport.Signaled,
						Local: []mem.Span{am.Cut(p*100000, 100000)}, Remote: w.Remote()}})
					if err == nil || err == transport.ErrQueueFull || err == transport.ErrTooManyReads {
						runtime.Gosched()
						continue
					}
					return
				}
			})
		}
		stop := make(chan struct{})
		wg.Go(func() {
			_ = b.drain()
		})
		wg.Go(func() {
			seen := 0
			for {
				n, err := a.qp.Poll(a.wc[:])
				if err != nil {
					return
				}
				if n == 0 {
					if err := a.qp.Wait(testCtx(t)); err != nil {
						t.Error(err)
						return
					}
				}
				for _, wc := range a.wc[:n] {
					if wc.Err == nil {
						seen++
					}
				}
				if seen > 50 {
					once.Do(func() { close(stop) })
				}
			}
		})
		<-stop
		if err := a.qp.Close(transport.Reason{}); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
	}
}
