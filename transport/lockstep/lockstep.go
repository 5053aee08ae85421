// Package lockstep drives a queue pair one step at a time: post, wait for the completion, take the next message. It is for
// tools and checks that want to say what happens in the order it happens in; a data path batches instead.
package lockstep

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// recvBit marks the tokens of receives, so that they never look like those of work requests.
const recvBit = 1 << 63

// Conn is a connection, or a queue pair about to become one. One goroutine uses it: the owner of the queue pair.
type Conn struct {
	QP transport.QP

	bufs  []mem.Span
	inbox []transport.WC // receives completed while something else was waited for
	next  uint64         // token of the next work request
	done  map[uint64]error
	wc    [16]transport.WC
	end   error // what Poll failed with
}

// New posts the receive buffers to a queue pair that is not connected yet.
func New(qp transport.QP, receives []mem.Span) (*Conn, error) {
	c := &Conn{QP: qp, bufs: receives, done: make(map[uint64]error)}
	for i := range receives {
		if err := c.Repost(i); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Repost makes receive buffer i available again.
func (c *Conn) Repost(i int) error {
	if _, err := c.QP.PostRecv([]transport.Recv{{Token: recvBit | uint64(i), Buf: c.bufs[i]}}); err != nil {
		return fmt.Errorf("post receive %d: %w", i, err)
	}
	return nil
}

// Do posts work requests together and returns when all of them are complete, with the first error. It sets Token and
// Signaled.
func (c *Conn) Do(ctx context.Context, wrs ...transport.WR) error {
	first := c.next
	for i := range wrs {
		wrs[i].Token, wrs[i].Flags = c.next, wrs[i].Flags|transport.Signaled
		c.next++
	}
	if _, err := c.QP.Post(wrs); err != nil {
		return fmt.Errorf("post: %w", c.reason(ctx, err))
	}
	var failed error
	for t := first; t < first+uint64(len(wrs)); t++ {
		for {
			err, ok := c.done[t]
			if ok {
				delete(c.done, t)
				failed = errors.Join(failed, err)
				break
			}
			if err := c.poll(ctx); err != nil {
				return err
			}
		}
	}
	return failed
}

// reason prefers what ended the connection to what Post says of it.
func (c *Conn) reason(ctx context.Context, err error) error {
	if !errors.Is(err, transport.ErrClosed) {
		return err
	}
	for {
		if perr := c.poll(ctx); perr != nil {
			return perr
		}
	}
}

// Recv returns the next message and the number of the receive buffer it lies in, for Repost.
func (c *Conn) Recv(ctx context.Context) (msg []byte, i int, err error) {
	for len(c.inbox) == 0 {
		if err := c.poll(ctx); err != nil {
			return nil, 0, err
		}
	}
	wc := c.inbox[0]
	c.inbox = c.inbox[1:]
	i = int(wc.Token &^ recvBit)
	if wc.Err != nil {
		return nil, i, c.drain(ctx)
	}
	return c.bufs[i].Bytes()[:wc.Len], i, nil
}

// drain polls to the end of a connection that is ending, to learn why.
func (c *Conn) drain(ctx context.Context) error {
	for {
		if err := c.poll(ctx); err != nil {
			return err
		}
	}
}

func (c *Conn) poll(ctx context.Context) error {
	if c.end != nil {
		return c.end
	}
	n, err := c.QP.Poll(c.wc[:])
	for _, wc := range c.wc[:n] {
		if wc.Op == transport.OpRecv {
			c.inbox = append(c.inbox, wc)
		} else {
			c.done[wc.Token] = wc.Err
		}
	}
	if err != nil {
		c.end = err
		return err
	}
	if n > 0 {
		return nil
	}
	if err := c.QP.Wait(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	return nil
}

// Close ends the connection in good order and waits until no buffer of it is in use.
func (c *Conn) Close(ctx context.Context) error {
	if err := c.QP.Close(transport.Reason{}); err != nil {
		return err
	}
	if err := c.drain(ctx); !errors.Is(err, transport.ErrClosed) {
		return err
	}
	return nil
}
