package drymemory

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// Where each buffer is denied to all but those who wait for it, all that clients do works all the same: no code takes want of
// memory for an end.
func TestWhoWaitsForMemoryGoesOn(t *testing.T) {
	var few []work // each denial costs, and with many at a time there are thousands for each byte that moves
	for _, w := range works {
		if w.name != "another of ours over iSER" && w.name != "libiscsi, by iscsi-test-cu" {
			few = append(few, w)
		}
	}
	newRound(t, 1, 1, 2).run(few, 1)
}

// hold takes a pool's memory, all of it.
func hold(t *testing.T, p *mem.Pool) (release func()) {
	t.Helper()
	var l []*mem.Buf
	for n := mem.MaxBuf; n >= mem.PageSize; n /= 4 {
		for {
			b, err := p.Get(n)
			if errors.Is(err, mem.ErrNoMemory) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			l = append(l, b)
		}
	}
	return func() {
		for _, b := range l {
			b.Release()
		}
	}
}

// Requests may hold all memory while they wait for a path to come back. A connection is made all the same, and a request that finds
// no memory goes on when others give theirs back.
func TestConnectionsDoNotWaitForRequests(t *testing.T) {
	r := newRound(t, 2, 0, 1)
	for _, scheme := range []string{"iscsi", "iser"} {
		t.Run(scheme, func(t *testing.T) {
			dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(0)
			ini, err := block.New(block.Options{Device: dev, Memory: pool})
			if err != nil {
				t.Fatal(err)
			}
			release := hold(t, pool)
			ctx, cancel := context.WithTimeout(r.ctx, patience)
			defer cancel()
			v, err := ini.Open(ctx, r.url(scheme, ours))
			if err != nil {
				t.Fatal(err)
			}
			want := noise(rand.New(rand.NewPCG(3, 3)), 3<<20)
			wrote := make(chan error, 1)
			go func() {
				_, err := v.WriteAtContext(ctx, want, 0)
				wrote <- err
			}()
			for pool.Stats().Waiting == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond) // a queue has no event
			}
			short, stop := context.WithCancel(ctx)
			stop()
			if _, err := v.ReadAtContext(short, make([]byte, 512), 0); !errors.Is(err, context.Canceled) {
				t.Errorf("a read that was given up while it waited: %v", err)
			}
			release()
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			got := make([]byte, len(want))
			if _, err := v.ReadAtContext(ctx, got, 0); err != nil || !bytes.Equal(got, want) {
				t.Errorf("other bytes, or %v", err)
			}
			if err := errors.Join(v.Close(), ini.Close(), pool.Close(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
