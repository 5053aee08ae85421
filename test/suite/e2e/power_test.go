package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/volatile"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// plug is a disk whose power can be cut; with lies set it says that it has flushed and has not.
type plug struct {
	blockdev.Device
	now  atomic.Pointer[volatile.Device]
	lies bool
}

func (p *plug) Geometry() blockdev.Geometry { return p.now.Load().Geometry() }
func (p *plug) Can(op blockdev.Op) bool     { return p.now.Load().Can(op) }
func (p *plug) Submit(r *blockdev.Request) {
	if p.lies && r.Op == blockdev.Flush {
		r.Finish(nil)
		return
	}
	if p.lies {
		r.FUA = false
	}
	p.now.Load().Submit(r)
}

// sectorState is what a sector may hold after a power cut: what was made durable last, or anything newer.
type sectorState struct {
	durable uint64
	newer   []uint64
}

func (s *sectorState) settle() {
	if len(s.newer) > 0 {
		s.durable, s.newer = s.newer[len(s.newer)-1], nil
	}
}

// lostError is what is missing after a cut, as opposed to what kept the test from looking.
type lostError struct{ error }

// powerRun writes with and without FUA and flushes over the wire until the power is cut at a random point, and says what
// is missing then of all that was acknowledged as durable.
func powerRun(v *block.Volume, p *plug, seed int64) error {
	const sectors = 64
	rnd := rand.New(rand.NewSource(seed))
	var state [sectors]sectorState
	zero := make([]byte, sectors*512)
	ctx := context.Background()
	if _, err := v.WriteAt(zero, 0); err != nil {
		return err
	}
	if err := v.Flush(ctx); err != nil {
		return err
	}
	buf, err := v.Memory().Get(512)
	if err != nil {
		return err
	}
	defer buf.Release()
	p.now.Load().CutAfter(rnd.Intn(40), uint64(seed))
	for step := uint64(1); step < 400; step++ {
		if rnd.Intn(8) == 0 {
			if v.Flush(ctx) != nil {
				break
			}
			for k := range state {
				state[k].settle()
			}
			continue
		}
		k, fua := rnd.Intn(sectors), rnd.Intn(4) == 0
		copy(buf.Bytes(), blockOf(step))
		state[k].newer = append(state[k].newer, step)
		if v.WriteSpans(ctx, int64(k)*512, fua, buf.Span()) != nil {
			break
		}
		if fua {
			state[k].settle()
		}
	}
	p.now.Load().Cut(uint64(seed))
	p.now.Store(p.now.Load().Reopen())
	got := make([]byte, sectors*512)
	if _, err := v.ReadAt(got, 0); err != nil {
		return err
	}
	for k := range state {
		is := binary.BigEndian.Uint64(got[k*512:])
		ok := is == state[k].durable
		for _, n := range state[k].newer {
			ok = ok || is == n
		}
		if !ok {
			return lostError{fmt.Errorf("seed %d: sector %d holds write %d, although write %d was acknowledged as durable", seed, k, is, state[k].durable)}
		}
	}
	return nil
}

// What FUA and flush acknowledged is there after a loss of power, at any point; and the test would notice if it were not.
func TestPowerCut(t *testing.T) {
	for _, scheme := range schemes {
		for _, lies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s lies=%v", scheme, lies), func(t *testing.T) {
				d, err := volatile.Open(volatile.Options{Size: diskSize})
				must(t, err)
				s := newStand(t, iwarp.Options{}, func(below blockdev.Device) blockdev.Device {
					must(t, below.Close())
					p := &plug{Device: d, lies: lies}
					p.now.Store(d)
					return p
				})
				v := open(t, host(t, block.Options{}, iwarp.Options{}), url(scheme, s.Portal("127.0.0.1", 1)))
				var found error
				for seed := range int64(15) {
					if err := powerRun(v, s.dev.(*plug), seed); err != nil {
						found = err
						break
					}
				}
				if found != nil && !errors.As(found, new(lostError)) {
					t.Fatal("nothing could be looked at: ", found)
				}
				if (found != nil) != lies {
					t.Fatal(found)
				}
			})
		}
	}
}
