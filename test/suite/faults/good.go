package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// Good is the good neighbour: a session over iSER that writes, reads and verifies, with some commands in flight.
type Good struct {
	dev  *iwarp.Device
	pool *mem.Pool
	ini  *block.Initiator
	vol  *block.Volume

	ops    atomic.Int64
	leave  atomic.Bool
	stop   context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	err    error
	times  []time.Duration // of operations since Measure began
	timing bool

	mayReconnect bool // losing the session is no error
}

const (
	goodDepth = 4
	goodBytes = 16 << 10
	goodSlots = 64 // places a worker writes to
)

// NewGood logs in over iSER and starts to work.
func NewGood(ctx context.Context, r *Rig) (*Good, error) {
	return newGood(ctx, r.Addr, r.Target, "iser", iwarp.Options{}, block.Options{})
}

func newGood(ctx context.Context, addr, target, scheme string, fabric iwarp.Options, o block.Options) (*Good, error) {
	g := &Good{dev: iwarp.New(fabric), pool: mem.NewPool(64 << 20)}
	o.Device, o.Memory, o.Name, o.Depth = g.dev, g.pool, "iqn.2026-11.io.sluice:good", 32
	var err error
	g.ini, err = block.New(o)
	if err != nil {
		return nil, errors.Join(err, g.dev.Close())
	}
	g.vol, err = g.ini.Open(ctx, fmt.Sprintf("%s://%s/%s/%d", scheme, addr, target, goodLUN))
	if err != nil {
		return nil, errors.Join(err, g.ini.Close(), g.dev.Close())
	}
	work, stop := context.WithCancel(context.Background())
	g.stop = stop
	for w := range goodDepth {
		g.wg.Go(func() { g.work(work, w) })
	}
	return g, nil
}

// work writes a place and reads another that was written before, which must hold what was written last.
func (g *Good) work(ctx context.Context, w int) {
	rng := rand.New(rand.NewPCG(uint64(w), 1))
	var written [goodSlots]uint64 // the version of each place, 0 for none
	out, in, want := make([]byte, goodBytes), make([]byte, goodBytes), make([]byte, goodBytes)
	at := func(slot int) int64 { return int64(w*goodSlots+slot) * goodBytes }
	step := func(version uint64) error {
		slot := rng.IntN(goodSlots)
		stamp(out, w, slot, version)
		if err := g.timed(func() error { _, err := g.vol.WriteAtContext(ctx, out, at(slot)); return err }); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		written[slot] = version
		slot = rng.IntN(goodSlots)
		if written[slot] == 0 {
			return nil
		}
		if err := g.timed(func() error { _, err := g.vol.ReadAtContext(ctx, in, at(slot)); return err }); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if stamp(want, w, slot, written[slot]); !bytes.Equal(in, want) {
			return fmt.Errorf("worker %d, place %d: what was written is not what is read", w, slot)
		}
		return nil
	}
	for version := uint64(1); ctx.Err() == nil && !g.leave.Load(); version++ {
		err := step(version)
		if err == nil {
			continue
		}
		if ctx.Err() == nil {
			g.mu.Lock()
			g.err = errors.Join(g.err, err)
			g.mu.Unlock()
		}
		return
	}
}

// stamp fills b with what only this version of this place has.
func stamp(b []byte, w, slot int, version uint64) {
	x := version<<16 | uint64(w)<<8 | uint64(slot)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x*0x9e3779b97f4a7c15+uint64(i))
	}
}

func (g *Good) timed(f func() error) error {
	begin := time.Now()
	err := f()
	took := time.Since(begin)
	g.ops.Add(1)
	g.mu.Lock()
	if g.timing {
		g.times = append(g.times, took)
	}
	g.mu.Unlock()
	return err
}

// Err is what went wrong so far.
func (g *Good) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.err
	if g.mayReconnect {
		return err
	}
	for _, p := range g.vol.Paths() {
		if !p.Up || p.Err != nil {
			err = errors.Join(err, fmt.Errorf("the good neighbour lost its session: %w", p.Err))
		}
	}
	return err
}

// Works waits until n more operations have been done and verified.
func (g *Good) Works(n int64) error {
	goal, limit := g.ops.Load()+n, time.Now().Add(patience)
	for g.ops.Load() < goal {
		if err := g.Err(); err != nil {
			return err
		}
		if time.Now().After(limit) {
			return fmt.Errorf("the good neighbour is stuck: %d of %d operations", g.ops.Load()-goal+n, n)
		}
		time.Sleep(time.Millisecond)
	}
	return g.Err()
}

// Measure is how many operations a second it does for a while, and the time below which 99 of 100 are.
func (g *Good) Measure(d time.Duration) (perSecond float64, p99 time.Duration, err error) {
	g.mu.Lock()
	g.times, g.timing = g.times[:0], true
	g.mu.Unlock()
	begin := time.Now()
	time.Sleep(d)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timing = false
	took := time.Since(begin)
	if g.err != nil || len(g.times) == 0 {
		return 0, 0, errors.Join(g.err, errors.New("no operation ended"))
	}
	slices.Sort(g.times)
	return float64(len(g.times)) / took.Seconds(), g.times[len(g.times)*99/100], nil
}

// Close lets what is under way end, and logs out.
func (g *Good) Close() error {
	g.leave.Store(true)
	late := time.AfterFunc(patience/2, g.stop) // the daemon may be gone
	g.wg.Wait()
	late.Stop()
	g.stop()
	err := g.Err()
	return errors.Join(err, g.vol.Close(), g.ini.Close(), g.dev.Close())
}
