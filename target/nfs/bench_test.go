package nfs_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// BenchmarkRead and BenchmarkWrite move a cached file of 64 MiB between our own halves, client and server in one process.
func BenchmarkRead(b *testing.B)  { bench(b, false) }
func BenchmarkWrite(b *testing.B) { bench(b, true) }

func bench(b *testing.B, write bool) {
	for _, how := range []string{"tcp", "iwarp"} {
		for _, c := range []struct{ size, depth int }{{4 << 10, 32}, {128 << 10, 16}, {1 << 20, 8}} {
			b.Run(fmt.Sprintf("%s/%dKiBx%d", how, c.size>>10, c.depth), func(b *testing.B) {
				s := start(b, how, nfs.Options{}, rpcserver.Options{}, nfs.Export{Rights: open, Async: true})
				v, _, err := infs.Mount(context.Background(), s.url, s.opts)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = v.Close() }()
				f, err := v.Create(context.Background(), "f", 0o600)
				if err != nil {
					b.Fatal(err)
				}
				const total = 64 << 20
				if _, err := f.WriteAt(make([]byte, total), 0); err != nil {
					b.Fatal(err)
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(c.size))
				b.ResetTimer()
				var next atomic.Int64
				var wg sync.WaitGroup
				for range c.depth {
					wg.Go(func() {
						p := make([]byte, c.size)
						for {
							i := next.Add(1)
							if i > int64(b.N) {
								return
							}
							off := i * int64(c.size) % total
							var err error
							if write {
								_, err = f.WriteAt(p, off)
							} else {
								_, err = f.ReadAt(p, off)
							}
							if err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
