package faults

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A command that is cancelled at any moment ends alone: the session goes on, because the answer to ABORT TASK never
// overtakes the response of the task it names (RFC 7143 section 11.6.1).
func TestCancellingACommandDoesNotCostTheSession(t *testing.T) {
	for _, scheme := range []string{"iser", "iscsi"} {
		t.Run(scheme, func(t *testing.T) {
			d := start(t, false)
			dev, pool := iwarp.New(iwarp.Options{}), mem.NewPool(64<<20)
			ini, err := block.New(block.Options{Device: dev, Memory: pool, Depth: 32})
			if err != nil {
				t.Fatal(err)
			}
			vol, err := ini.Open(context.Background(), scheme+"://"+d.Rig.Addr+"/"+TargetName+"/0")
			if err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			var cancelled atomic.Int32
			for w := range 4 {
				wg.Go(func() {
					b := make([]byte, 16<<10)
					for i := range 400 {
						ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(600))*time.Microsecond)
						var err error
						if i%2 == 0 {
							_, err = vol.WriteAtContext(ctx, b, int64(w)<<20)
						} else {
							_, err = vol.ReadAtContext(ctx, b, int64(w)<<20)
						}
						cancel()
						if errors.Is(err, context.DeadlineExceeded) {
							cancelled.Add(1)
						} else if err != nil {
							t.Errorf("operation %d: %v", i, err)
							return
						}
						for _, p := range vol.Paths() {
							if !p.Up || p.Err != nil {
								t.Errorf("operation %d: the session was lost: %v", i, p.Err)
								return
							}
						}
					}
				})
			}
			wg.Wait()
			if cancelled.Load() == 0 {
				t.Error("no operation was cancelled, whatever its time")
			}
			if err := errors.Join(vol.Close(), ini.Close(), pool.Close(), dev.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}
