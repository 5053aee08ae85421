package block

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-storage/sluice/internal/mem"
)

// get returns memory for a request. What others hold is waited for: they give it back when their requests end.
func (i *Initiator) get(ctx context.Context, n int) (*mem.Buf, error) {
	b, err := i.pool.Get(n)
	if errors.Is(err, mem.ErrNoMemory) {
		return waitFor(ctx, i.pool, n)
	}
	return b, err
}

// waitFor waits for memory of a pool in the order of all that wait for it.
func waitFor(ctx context.Context, p *mem.Pool, n int) (*mem.Buf, error) {
	s := p.Share(int64(n) + mem.MaxBuf) // a larger buffer than was asked for may be what is free
	defer s.Close()
	for {
		b, err := s.Get(n)
		if !errors.Is(err, mem.ErrNoMemory) {
			return b, err
		}
		there := make(chan struct{})
		s.Wait(func() { close(there) })
		select {
		case <-there:
		case <-ctx.Done():
			return nil, fmt.Errorf("block: %w: %w", context.Cause(ctx), err)
		}
	}
}

// spare is memory that only connections get. Requests that hold all of the pool may wait for a path to come back, so what a
// login needs must not be waited for behind them. It is taken where the pool has none, and most initiators never make it.
type spare struct {
	mu   sync.Mutex
	pool *mem.Pool
}

// getForPath returns memory for a connection, or for what is asked over it before requests are.
func (i *Initiator) getForPath(ctx context.Context, n int) (*mem.Buf, error) {
	b, err := i.pool.Get(n)
	if !errors.Is(err, mem.ErrNoMemory) {
		return b, err
	}
	p, err := i.sparePool()
	if err != nil {
		return nil, err
	}
	return waitFor(ctx, p, n)
}

func (i *Initiator) sparePool() (*mem.Pool, error) {
	i.known.mu.Lock()
	defer i.known.mu.Unlock()
	i.spare.mu.Lock()
	defer i.spare.mu.Unlock()
	if i.spare.pool == nil {
		p := mem.NewPool(spareMemory)
		for _, d := range i.known.devices {
			if err := p.OnSlab(d); err != nil {
				return nil, fmt.Errorf("block: register memory with %s: %w", d.Name(), err)
			}
		}
		i.spare.pool = p
	}
	return i.spare.pool, nil
}

// close gives the memory back; all connections have ended.
func (s *spare) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pool == nil {
		return nil
	}
	return s.pool.Close()
}
