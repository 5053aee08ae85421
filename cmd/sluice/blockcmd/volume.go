package blockcmd

import (
	"context"
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
	if at%bs == 0 && int64(p.Len)%bs == 0 {
		return p.Len, c.v.ReadSpans(ctx, at, p)
	}
	return c.v.ReadAtContext(ctx, p.Bytes(), at)
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

// patch changes a part of one block, of which the rest may be another writer's.
func (c *volume) patch(ctx context.Context, at int64, p []byte) error {
	_, err := c.v.WriteAtContext(ctx, p, at)
	return err
}

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
