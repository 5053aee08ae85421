package blockcmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/cmd/sluice/ui"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
)

// volume is a volume as source or sink of a copy.
type volume struct {
	v    *block.Volume
	base int64 // where the copy begins on the volume
	n    int64 // bytes to read
	zero bool  // write runs of zeroes as WRITE SAME with UNMAP
}

func (c *volume) ranged() bool { return true }
func (c *volume) size() int64  { return c.n }

// skew is how far the copy's beginning is past a piece's: pieces are cut where the volume's are, so that no two share a block.
func (c *volume) skew() int64 { return c.base % pieceSize }

func (c *volume) readAt(ctx context.Context, p mem.Span, off int64) (int, error) {
	bs, at := int64(c.v.Geometry().Logical), c.base+off
	first, last := at-at%bs, (at+int64(p.Len)+bs-1)/bs*bs
	if first == at && last == at+int64(p.Len) {
		return p.Len, c.v.ReadSpans(ctx, at, p)
	}
	for from := first; from < last; {
		n := min(last-from, mem.MaxBuf)
		buf, err := c.v.Memory().Get(int(n))
		if err != nil {
			return 0, err
		}
		if err = c.v.ReadSpans(ctx, from, buf.Span()); err == nil {
			a, b := max(at, from), min(at+int64(p.Len), from+n)
			copy(p.Bytes()[a-at:b-at], buf.Bytes()[a-from:b-from])
		}
		buf.Release()
		if err != nil {
			return 0, err
		}
		from += n
	}
	return p.Len, nil
}

// writeAt writes whole blocks as they are; what begins or ends within a block is put into it.
func (c *volume) writeAt(ctx context.Context, p mem.Span, off int64) error {
	g := c.v.Geometry()
	bs, at := int64(g.Logical), c.base+off
	if at+int64(p.Len) > g.Size {
		return ui.ExitError{Code: ui.CodeRefused, Err: fmt.Errorf("the volume ends at %s (%d bytes); the data go on", ui.Bytes(g.Size), g.Size)}
	}
	if into := at % bs; into != 0 {
		n := min(int(bs-into), p.Len)
		if err := c.patch(ctx, at, p.Bytes()[:n]); err != nil {
			return err
		}
		p, at = p.Cut(n, p.Len-n), at+int64(n)
	}
	tail := p.Len % int(bs)
	if whole := p.Cut(0, p.Len-tail); whole.Len > 0 {
		if err := c.blocks(ctx, at, whole); err != nil {
			return err
		}
		at += int64(whole.Len)
	}
	if tail == 0 {
		return nil
	}
	return c.patch(ctx, at, p.Bytes()[p.Len-tail:])
}

func (c *volume) blocks(ctx context.Context, at int64, p mem.Span) error {
	if c.zero && allZero(p.Bytes()) {
		return c.v.WriteZeroes(ctx, at, int64(p.Len), true)
	}
	return c.v.WriteSpans(ctx, at, false, p)
}

// patch changes a part of one block. The rest of it may be another writer's: the block is written only where it still
// holds what was read (COMPARE AND WRITE, SBC-3 section 5.2), and read again otherwise. A target without that command
// leaves reading and writing apart; then a block with two writers wants one of them to wait.
func (c *volume) patch(ctx context.Context, at int64, p []byte) error {
	g := c.v.Geometry()
	bs := int64(g.Logical)
	first := at - at%bs
	buf, err := c.v.Memory().Get(int(bs))
	if err != nil {
		return err
	}
	defer buf.Release()
	now, old := buf.Bytes(), make([]byte, bs)
	for range patchTries {
		if err := c.v.ReadSpans(ctx, first, buf.Span()); err != nil {
			return err
		}
		copy(old, now)
		copy(now[at-first:], p)
		if g.MaxCompare < bs {
			return c.v.WriteSpans(ctx, first, false, buf.Span())
		}
		// Of an unknown outcome, after a lost connection, the next round makes a known one: what was written is there or not.
		_, err := c.v.CompareAndWrite(ctx, first, old, now)
		if !errors.Is(err, block.ErrMiscompare) && !errors.Is(err, block.ErrOutcomeUnknown) || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("another writer changes the block at %d all the time", first)
}

// patchTries bounds how often a block is changed by others before this writer's turn: each round one of them succeeds.
const patchTries = 10000

func (c *volume) finish(ctx context.Context, _ int64) error { return c.v.Flush(ctx) }

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if b[0]|b[1]|b[2]|b[3]|b[4]|b[5]|b[6]|b[7] != 0 {
			return false
		}
		b = b[8:]
	}
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
