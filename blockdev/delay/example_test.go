package delay_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/delay"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
)

// A test of what a program does meanwhile has a disk whose flushes take long.
func ExampleOpen() {
	below, err := bmem.Open(bmem.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	d, err := delay.Open(below, delay.Options{For: func(r *blockdev.Request) time.Duration {
		if r.Op == blockdev.Flush {
			return 20 * time.Millisecond
		}
		return 0
	}})
	if err != nil {
		log.Fatal(err)
	}
	from := time.Now()
	if err := blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Flush}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(time.Since(from) >= 20*time.Millisecond)
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: true
}
