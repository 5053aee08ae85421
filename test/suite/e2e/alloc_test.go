package e2e

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/test/lib/race"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// load keeps depth requests under way until n have completed.
type load struct {
	v    *block.Volume
	left atomic.Int64
	wg   sync.WaitGroup
	errs atomic.Int64
	reqs []blockdev.Request
}

func newLoad(t testing.TB, v *block.Volume, op blockdev.Op, depth, size int) *load {
	l := &load{v: v, reqs: make([]blockdev.Request, depth)}
	for k := range l.reqs {
		b, err := v.Memory().Get(size)
		must(t, err)
		t.Cleanup(b.Release)
		l.reqs[k] = blockdev.Request{Op: op, Offset: int64(k*size) % (diskSize / 2), Length: int64(size), Data: []mem.Span{b.Span()}, Done: l.done}
	}
	return l
}

func (l *load) done(r *blockdev.Request) {
	if r.Err != nil {
		l.errs.Add(1)
	}
	if l.left.Add(-1) < 0 {
		l.wg.Done()
		return
	}
	l.v.Submit(r)
}

func (l *load) run(t testing.TB, n int) {
	l.left.Store(int64(n - len(l.reqs)))
	l.wg.Add(len(l.reqs))
	for k := range l.reqs {
		l.v.Submit(&l.reqs[k])
	}
	l.wg.Wait()
	if e := l.errs.Load(); e != 0 {
		t.Fatalf("%d requests failed", e)
	}
}

// In steady state neither end allocates for an I/O (law 3): the few allocations of so many requests are timers' and the
// scheduler's.
func TestAllocations(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	addr := s.Portal("127.0.0.1", 1)
	for _, scheme := range schemes {
		for _, op := range []blockdev.Op{blockdev.Read, blockdev.Write} {
			t.Run(scheme+" "+op.String(), func(t *testing.T) {
				v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, addr))
				l := newLoad(t, v, op, 16, 16<<10)
				l.run(t, 3000)
				const n = 5000
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				l.run(t, n)
				runtime.ReadMemStats(&after)
				if per := float64(after.Mallocs-before.Mallocs) / n; per > 0.05 && !race.Enabled {
					t.Errorf("%.3f allocations for an I/O", per)
				} else {
					t.Logf("%.4f allocations for an I/O", per)
				}
			})
		}
	}
}

func BenchmarkVolume(b *testing.B) {
	for _, scheme := range schemes {
		for _, c := range []struct {
			name        string
			op          blockdev.Op
			depth, size int
		}{{"read 4k qd32", blockdev.Read, 32, 4 << 10}, {"write 4k qd32", blockdev.Write, 32, 4 << 10}, {"read 128k qd16", blockdev.Read, 16, 128 << 10},
			{"write 128k qd16", blockdev.Write, 16, 128 << 10}} {
			b.Run(scheme+"/"+c.name, func(b *testing.B) {
				s := newStand(b, iwarp.Options{})
				v := open(b, host(b, block.Options{}, iwarp.Options{}), url(scheme, s.Portal("127.0.0.1", 1)))
				l := newLoad(b, v, c.op, c.depth, c.size)
				l.run(b, 4*c.depth)
				b.SetBytes(int64(c.size))
				b.ReportAllocs()
				b.ResetTimer()
				l.run(b, max(b.N, 2*c.depth))
			})
		}
	}
}
