package faults

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/wire"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// The wire is cut again and again, and bytes on it are spoiled, and the initiator works on: it logs in again, repeats
// what has no known outcome, and all that it reads is what it wrote last. The CRC is what makes a spoiled byte a cut.
func TestWireThatIsCutAndSpoiled(t *testing.T) {
	for _, c := range []struct {
		name, scheme string
		spoil        bool
	}{{"iSER, cut", "iser", false}, {"iSER, spoiled", "iser", true}, {"TCP, cut", "iscsi", false}} {
		t.Run(c.name, func(t *testing.T) {
			d := start(t, false)
			// Seeded by nothing that changes: the places are the same in each run, as far as the traffic is.
			place := func(conn int, fromClient bool) int64 {
				seed := uint64(conn) * 2
				if fromClient {
					seed++
				}
				return 64<<10 + rand.New(rand.NewPCG(seed, 7)).Int64N(1<<20)
			}
			var hits atomic.Int64
			tap := wire.Tap{}
			if c.spoil {
				tap.Change = func(conn int, fromClient bool, at int64, b []byte) []byte {
					if i := place(conn, fromClient) - at; i >= 0 && i < int64(len(b)) {
						b[i] ^= 0x10
						hits.Add(1)
					}
					return b
				}
			} else {
				tap.CutAfter = func(conn int, fromClient bool) int64 {
					hits.Add(1) // a connection that was made to be cut
					return place(conn, fromClient)
				}
			}
			p, err := wire.NewProxy(d.Rig.Addr, tap)
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			}()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			g, err := newGood(ctx, p.Addr(), TargetName, c.scheme, iwarp.Options{CRC: iwarp.CRCOn},
				block.Options{MinBackoff: time.Millisecond, MaxBackoff: 50 * time.Millisecond, Keepalive: time.Second, ReconnectLimit: patience})
			if err != nil {
				t.Fatalf("%v\n%s", err, tail(d.Log()))
			}
			g.mu.Lock()
			g.mayReconnect = true
			g.mu.Unlock()
			for hits.Load() < 20 {
				if err := g.Works(50); err != nil {
					t.Errorf("after %d cuts: %v\n%s", hits.Load(), err, tail(d.Log()))
					break
				}
			}
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if err := d.Alive(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
