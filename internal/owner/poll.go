package owner

import (
	"context"
	"errors"

	"github.com/sluice-storage/sluice/transport"
)

// Poller polls one queue pair. Only the owner of the queue pair uses it.
type Poller struct {
	QP  transport.QP
	wcs [pollBatch]transport.WC
}

// Next returns completions, which are the caller's until it polls again. With wait set it returns when there are some, or the
// end of the connection; otherwise it may return none. The end is reported when no completion is left, and again by each
// further call; what the context or Wait says may come earlier, and Drain is what takes the rest.
func (p *Poller) Next(ctx context.Context, wait bool) ([]transport.WC, error) {
	return p.AtMost(ctx, wait, len(p.wcs))
}

// AtMost is Next for no more than most completions.
func (p *Poller) AtMost(ctx context.Context, wait bool, most int) ([]transport.WC, error) {
	for {
		n, err := p.QP.Poll(p.wcs[:most])
		switch {
		case n > 0:
			return p.wcs[:n], nil
		case err != nil:
			return nil, err
		case !wait:
			return nil, nil
		}
		// A closed queue pair may still have completions: Poll says when it has none.
		switch err := p.QP.Wait(ctx); {
		case err == nil:
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, transport.ErrClosed):
			return nil, err
		}
	}
}

// Drain takes every completion that a closed queue pair still owes, and gives them to each, which may be nil. It returns what
// Poll said at the end.
func (p *Poller) Drain(each func([]transport.WC)) error {
	for {
		n, err := p.QP.Poll(p.wcs[:])
		switch {
		case n > 0 && each != nil:
			each(p.wcs[:n])
		case n > 0:
		case err != nil:
			return err
		default:
			_ = p.QP.Wait(context.Background()) // whatever it says, Poll tells the end
		}
	}
}
