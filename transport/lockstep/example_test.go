package lockstep_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/lockstep"
)

// side makes a connection with one receive, and a buffer to send from.
func side(dev transport.Device, pool *mem.Pool) (*lockstep.Conn, *mem.Buf) {
	q, err := dev.NewQP(transport.QPOptions{})
	if err != nil {
		log.Fatal(err)
	}
	in, err := pool.Get(64)
	if err != nil {
		log.Fatal(err)
	}
	out, err := pool.Get(64)
	if err != nil {
		log.Fatal(err)
	}
	c, err := lockstep.New(q, []mem.Span{in.Span()})
	if err != nil {
		log.Fatal(err)
	}
	return c, out
}

// say sends a message, and returns when it has gone.
func say(ctx context.Context, c *lockstep.Conn, out *mem.Buf, text string) error {
	n := copy(out.Bytes(), text)
	return c.Do(ctx, transport.WR{Op: transport.OpSend, Local: []mem.Span{out.Span().Cut(0, n)}})
}

// A question and its answer, in the order in which they happen.
func Example() {
	ctx := context.Background()
	rnic, pool := iwarp.New(iwarp.Options{}), mem.NewPool(4<<20)
	if err := pool.OnSlab(rnic); err != nil {
		log.Fatal(err)
	}
	l, err := rnic.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	answered := make(chan error)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			answered <- err
			return
		}
		c, out := side(rnic, pool)
		if err = r.Accept(ctx, c.QP, transport.ConnParams{}); err == nil {
			var msg []byte
			if msg, _, err = c.Recv(ctx); err == nil {
				err = say(ctx, c, out, "hello "+string(msg))
			}
		}
		answered <- err
	}()

	c, out := side(rnic, pool)
	if _, err := rnic.Dial(ctx, l.Addr().String(), c.QP, transport.ConnParams{}); err != nil {
		log.Fatal(err)
	}
	if err := say(ctx, c, out, "Alice"); err != nil {
		log.Fatal(err)
	}
	msg, _, err := c.Recv(ctx)
	fmt.Printf("%s %v\n", msg, err)
	if err := errors.Join(<-answered, l.Close(), rnic.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: hello Alice <nil>
}
