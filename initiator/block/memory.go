package block

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// get returns memory for a call that copies, until put, for which Close waits. What others hold is waited for: they give it
// back when their requests end.
func (v *Volume) get(ctx context.Context, n int) (*mem.Buf, error) {
	if !v.copying.TryRLock() { // it fails while Close waits, and from then on
		return nil, blockdev.ErrClosed
	}
	b, err := v.ini.pool.Get(n)
	if errors.Is(err, mem.ErrNoMemory) {
		ctx, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(v.ctx, func() { cancel(blockdev.ErrClosed) })
		b, err = waitFor(ctx, v.ini.pool, n)
		stop()
		cancel(nil)
	}
	if err != nil {
		v.copying.RUnlock()
	}
	return b, err
}

func (v *Volume) put(b *mem.Buf) {
	b.Release()
	v.copying.RUnlock()
}

// waitFor waits for memory of a pool in the order of all that wait for it.
func waitFor(ctx context.Context, p *mem.Pool, n int) (*mem.Buf, error) {
	s := p.Quota(int64(n) + mem.MaxBuf) // a larger buffer than was asked for may be what is free
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
	b, err = waitFor(ctx, p, n)
	if errors.Is(err, mem.ErrNoRoom) { // an adapter can register no more: what there is comes back from requests of paths that are up
		return waitFor(ctx, i.pool, n)
	}
	return b, err
}

// kept is the memory of a path's connections, which each leaves to the next: requests that hold all other, and all that an adapter has
// room for, may wait for just that one.
type kept struct {
	mu   sync.Mutex
	set  []*mem.Buf // of a connection that has ended
	page *mem.Buf   // of what is asked over it before requests are
	over bool
}

// take is what the last connection left; nil is a path that keeps none.
func (k *kept) take() []*mem.Buf {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	set := k.set
	k.set = nil
	return set
}

// put keeps all the memory of a connection. There may be one already: a fence's session has its own.
func (k *kept) put(set []*mem.Buf) {
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.over && k.set == nil {
			k.set = set
			return
		}
	}
	releaseAll(set)
}

func releaseAll(set []*mem.Buf) {
	for _, b := range set {
		b.Release()
	}
}

func (k *kept) takePage() *mem.Buf {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.page
	k.page = nil
	return b
}

func (k *kept) putPage(b *mem.Buf) {
	if k != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		if !k.over && k.page == nil {
			k.page = b
			return
		}
	}
	b.Release()
}

// close gives the memory back, and what is still to come of it.
func (k *kept) close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.over = true
	releaseAll(k.set)
	k.set = nil
	if k.page != nil {
		k.page.Release()
		k.page = nil
	}
}

// carver cuts the memory of one connection from few buffers: of what the last one left, where that fits, and else from the pool.
type carver struct {
	i    *Initiator
	k    *kept
	left int // bytes that are still to be cut
	had  []*mem.Buf
	bufs []*mem.Buf
	off  int // into the last of them
}

const (
	// carved is the largest buffer that a connection holds for as long as it is up: the largest there are must come back to requests.
	carved = 256 << 10
	// line keeps pieces apart that different ends write.
	line = 64
)

func lines(n int) int { return (n + line - 1) &^ (line - 1) }

func (c *carver) cut(ctx context.Context, n, size int) ([]mem.Span, error) {
	size = lines(size)
	out := make([]mem.Span, 0, n)
	for range n {
		if len(c.bufs) == 0 || c.off+size > c.bufs[len(c.bufs)-1].Len() {
			b, err := c.get(ctx, min(max(c.left, size), carved))
			if err != nil {
				return nil, fmt.Errorf("block: memory for a connection: %w", err)
			}
			c.bufs, c.off = append(c.bufs, b), 0
		}
		out = append(out, c.bufs[len(c.bufs)-1].Span().Cut(c.off, size))
		c.off += size
		c.left -= size
	}
	return out, nil
}

func (c *carver) get(ctx context.Context, n int) (*mem.Buf, error) {
	for k, b := range c.had {
		if b.Len() == n {
			c.had = slices.Delete(c.had, k, k+1)
			return b, nil
		}
	}
	return c.i.getForPath(ctx, n)
}

// done ends the cutting. Half of what a connection needs is not kept: others may wait for it.
func (c *carver) done(err error) error {
	releaseAll(c.had)
	c.had = nil
	if err != nil {
		releaseAll(c.bufs)
		c.bufs = nil
	}
	return err
}

func (i *Initiator) sparePool() (*mem.Pool, error) {
	i.known.mu.Lock()
	defer i.known.mu.Unlock()
	i.spare.mu.Lock()
	defer i.spare.mu.Unlock()
	if i.spare.pool == nil {
		p := i.pool.Kind().NewPool(spareMemory)
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
