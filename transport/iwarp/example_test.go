package iwarp_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// The software RNIC needs nothing of the machine but TCP. Both sides say something as they connect, and agree on a depth of RDMA Reads.
func Example() {
	ctx := context.Background()
	rnic := iwarp.New(iwarp.Options{CRC: iwarp.CRCOn})
	l, err := rnic.Listen(ctx, "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	accepted := make(chan error)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			accepted <- err
			return
		}
		q, err := rnic.NewQP(transport.QPOptions{})
		if err == nil {
			err = r.Accept(ctx, q, transport.ConnParams{Private: append([]byte("welcome, "), r.Peer().Private...), ReadsIn: 4})
		}
		accepted <- err
	}()

	q, err := rnic.NewQP(transport.QPOptions{})
	if err != nil {
		log.Fatal(err)
	}
	peer, err := rnic.Dial(ctx, l.Addr().String(), q, transport.ConnParams{Private: []byte("Alice"), ReadsOut: 16})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %d reads at a time\n", peer.Private, q.Depth().Out)
	if err := errors.Join(<-accepted, l.Close(), rnic.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: welcome, Alice: 4 reads at a time
}
