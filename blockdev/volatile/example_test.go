package volatile_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/volatile"
	"github.com/sluice-storage/sluice/mem"
)

// What was flushed is there after a loss of power; what was not may be there or not.
func ExampleDevice_Cut() {
	d, err := volatile.Open(volatile.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	pool := mem.NewPool(1 << 20)
	b, err := pool.Get(512)
	if err != nil {
		log.Fatal(err)
	}
	clear(b.Bytes())
	do := func(r *blockdev.Request) {
		if r.Op != blockdev.Flush {
			r.Length, r.Data = 512, []mem.Span{b.Span()}
		}
		if err := blockdev.Do(context.Background(), d, r); err != nil {
			log.Fatal(err)
		}
	}
	copy(b.Bytes(), "kept")
	do(&blockdev.Request{Op: blockdev.Write})
	do(&blockdev.Request{Op: blockdev.Flush})
	do(&blockdev.Request{Op: blockdev.Write, Offset: 4096})

	d.Cut(7)
	err = blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Flush})
	fmt.Println(errors.Is(err, volatile.ErrPower))

	d = d.Reopen()
	do(&blockdev.Request{Op: blockdev.Read})
	fmt.Printf("%s\n", b.Bytes()[:4])
	b.Release()
	if err := errors.Join(d.Close(), pool.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// true
	// kept
}
