package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// wait is the owner of a queue pair until its next completion.
func wait(q transport.QP) transport.WC {
	var wc [1]transport.WC
	for {
		n, err := q.Poll(wc[:])
		if n == 1 && wc[0].Err == nil {
			return wc[0]
		}
		if err == nil && n == 0 {
			err = q.Wait(context.Background())
		}
		if err = errors.Join(err, wc[0].Err); err != nil {
			log.Fatal(err)
		}
	}
}

// Two devices of any provider are connected, and a message goes from one registered buffer to the other.
func Example() {
	ctx := context.Background()
	a, b := iwarp.New(iwarp.Options{}), iwarp.New(iwarp.Options{})
	pool := mem.NewPool(4 << 20)
	if err := errors.Join(pool.OnSlab(a), pool.OnSlab(b)); err != nil { // registers what the pool has, and what it will have
		log.Fatal(err)
	}
	l, err := b.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	got := make(chan string)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		q, err := b.NewQP(transport.QPOptions{})
		if err != nil {
			log.Fatal(err)
		}
		in, err := pool.Get(64)
		if err != nil {
			log.Fatal(err)
		}
		defer in.Release()
		// Receives are posted before the connection is there: the peer may send at once.
		if _, err := q.PostRecv([]transport.Recv{{Token: 1, Buf: in.Span()}}); err != nil {
			log.Fatal(err)
		}
		if err := r.Accept(ctx, q, transport.ConnParams{}); err != nil {
			log.Fatal(err)
		}
		wc := wait(q)
		got <- string(in.Bytes()[:wc.Len])
	}()

	q, err := a.NewQP(transport.QPOptions{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.Dial(ctx, l.Addr().String(), q, transport.ConnParams{}); err != nil {
		log.Fatal(err)
	}
	out, err := pool.Get(64)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(out.Bytes(), "hello")
	if _, err := q.Post([]transport.WR{{Op: transport.OpSend, Flags: transport.Signaled, Local: []mem.Span{out.Span().Cut(0, n)}}}); err != nil {
		log.Fatal(err)
	}
	wait(q) // the memory that the Send names is ours again
	out.Release()
	fmt.Println(<-got)
	if err := errors.Join(l.Close(), a.Close(), b.Close(), pool.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: hello
}
