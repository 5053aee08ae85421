package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/blockdevtest"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/mem"
)

// BenchmarkDepth keeps requests under way, each submitted again by its own completion, on 256 MiB past the page cache: by io_uring and
// by workers. SLUICE_BENCH_FILE names a file that is there, on the disk that is to be measured.
func BenchmarkDepth(b *testing.B) {
	const area = 256 << 20
	path := os.Getenv("SLUICE_BENCH_FILE")
	if path == "" {
		path = filepath.Join(b.TempDir(), "v")
		if err := os.WriteFile(path, make([]byte, area), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for _, w := range []struct {
		op    blockdev.Op
		size  int
		depth int
	}{{blockdev.Read, 4 << 10, 32}, {blockdev.Write, 4 << 10, 32}, {blockdev.Read, 128 << 10, 16}, {blockdev.Write, 128 << 10, 16}, {blockdev.Read, 4 << 10, 1}} {
		for _, without := range []bool{false, true} {
			b.Run(fmt.Sprintf("%v %d KiB depth %d/without %v", w.op, w.size>>10, w.depth, without), func(b *testing.B) {
				d, err := file.Open(path, file.Options{Logical: 4096, Direct: true, NoRing: without})
				if err != nil {
					b.Fatal(err)
				}
				m := blockdevtest.NewMemory(b, w.size*w.depth)
				var begun, ended atomic.Int64
				over := make(chan struct{})
				next := func(r *blockdev.Request) {
					n := begun.Add(1)
					if n > int64(b.N) {
						return
					}
					r.Offset = int64(uint64(n)*0x9E3779B1%uint64(area/w.size)) * int64(w.size)
					d.Submit(r)
				}
				done := func(r *blockdev.Request) {
					if r.Err != nil {
						b.Error(r.Err)
					}
					if ended.Add(1) == int64(b.N) {
						close(over)
						return
					}
					next(r)
				}
				b.SetBytes(int64(w.size))
				b.ReportAllocs()
				b.ResetTimer()
				for range w.depth {
					next(&blockdev.Request{Op: w.op, Length: int64(w.size), Data: []mem.Span{m.Span(w.size)}, Done: done})
				}
				<-over
				b.StopTimer()
				if q, _ := blockdev.QueueOf(d); q.Requests > 0 {
					b.ReportMetric(float64(q.Calls)/float64(q.Requests), "calls/op")
				}
				blockdevtest.Close(b, d)
			})
		}
	}
}
