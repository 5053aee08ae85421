package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// adapterStand is a stand whose target is reached over a fabric of adapters.
func adapterStand(t testing.TB, like transporttest.Adapter) (s *served, dev transport.Device, addr string) {
	t.Helper()
	net := transporttest.NewNetwork()
	near, far := net.Adapter(like), net.Adapter(like)
	t.Cleanup(func() { must(t, errors.Join(far.Close(), near.Close())) }) // after the stand: its server ends by itself
	s = newStand(t, iwarp.Options{})
	return s, far, s.Fabric(near, "192.0.2.1:3260", 1)
}

// An adapter has windows of one piece, ends without a reason, pads private data and completes in order; without windows a whole
// slab is exposed, and the target must not end its STag.
func TestAVolumeOverAnAdapter(t *testing.T) {
	for name, like := range map[string]transporttest.Adapter{"windows": {}, "whole slab": {WholeSlab: true}} {
		t.Run(name, func(t *testing.T) {
			s, dev, addr := adapterStand(t, like)
			i, err := block.New(block.Options{Device: dev, MinBackoff: 5 * time.Millisecond, MaxBackoff: 100 * time.Millisecond})
			must(t, err)
			t.Cleanup(func() { must(t, i.Close()) })
			v := open(t, i, url("iser", addr))
			ctx := context.Background()
			var all sync.WaitGroup
			for w := range 4 {
				all.Go(func() {
					for _, n := range []int{512, 4096, 8704, 64 << 10, 512 << 10} {
						want, got := pattern(n, int64(n+w)), make([]byte, n)
						at := int64(w) << 20
						if _, err := v.WriteAt(want, at); err != nil {
							t.Error(err)
							return
						}
						if _, err := v.ReadAt(got, at); err != nil || !bytes.Equal(got, want) {
							t.Errorf("%d bytes: %v, equal %v", n, err, bytes.Equal(got, want))
							return
						}
					}
				})
			}
			all.Wait()
			// One request in many pieces of memory.
			var bufs []*mem.Buf
			var data []mem.Span
			for k := range 9 {
				b, err := i.Memory().Get(4096 << (k % 3))
				must(t, err)
				copy(b.Bytes(), pattern(b.Len(), int64(k)))
				bufs, data = append(bufs, b), append(data, b.Span())
			}
			must(t, v.WriteSpans(ctx, 1<<20, false, data...))
			for _, b := range bufs {
				clear(b.Bytes())
			}
			must(t, v.ReadSpans(ctx, 1<<20, data...))
			for k, b := range bufs {
				if !bytes.Equal(b.Bytes(), pattern(b.Len(), int64(k))) {
					t.Errorf("piece %d differs", k)
				}
				b.Release()
			}
			one, two := pattern(4096, 1), pattern(4096, 2)
			_, err = v.WriteAt(one, 4096)
			must(t, err)
			_, err = v.CompareAndWrite(ctx, 4096, one, two)
			must(t, err)
			must(t, v.WriteZeroes(ctx, 4096, 8192, true))
			must(t, v.Discard(ctx, 1<<20, 1<<20))
			must(t, v.Flush(ctx))
			if n := len(s.Server.Sessions()); n != 1 {
				t.Errorf("%d sessions", n)
			}
		})
	}
}

// More commands than the send queue has places for each one's requests, one after another: those that are not signaled give
// theirs back.
func TestAShallowVolumeOverAnAdapterNeverRunsOutOfItsSendQueue(t *testing.T) {
	_, dev, addr := adapterStand(t, transporttest.Adapter{})
	for _, depth := range []int{1, 2, 7} {
		i, err := block.New(block.Options{Device: dev, Depth: depth, Immediate: -1})
		must(t, err)
		v := open(t, i, url("iser", addr))
		b := make([]byte, 4096)
		for k := range 200 {
			if _, err := v.ReadAt(b, int64(k)*4096); err != nil {
				t.Fatal(fmt.Errorf("read %d at depth %d: %w", k, depth, err))
			}
		}
		must(t, v.Close())
		must(t, i.Close())
	}
}
