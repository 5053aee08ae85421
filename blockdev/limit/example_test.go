package limit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/limit"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/mem"
)

// A volume is held to a hundred requests a second; what is over that waits. Set changes the limit while the volume is in use.
func ExampleOpen() {
	below, err := bmem.Open(bmem.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	d, err := limit.Open(below, limit.Options{IOPS: 100, Burst: 10 * time.Millisecond})
	if err != nil {
		log.Fatal(err)
	}
	pool := mem.NewPool(1 << 20)
	b, err := pool.Get(4096)
	if err != nil {
		log.Fatal(err)
	}
	from := time.Now()
	for range 5 {
		r := &blockdev.Request{Op: blockdev.Read, Length: 4096, Data: []mem.Span{b.Span()}}
		if err := blockdev.Do(context.Background(), d, r); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("five took their time:", time.Since(from) > 30*time.Millisecond)
	if err := d.Set(limit.Options{Bandwidth: 1 << 30}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Waiting(), "wait")
	b.Release()
	if err := errors.Join(d.Close(), pool.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// five took their time: true
	// 0 wait
}
