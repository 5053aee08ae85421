package blockdev_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/mem"
)

// counted is a device that counts the bytes that are written to the one below.
type counted struct {
	blockdev.Filter
	written atomic.Int64
}

func (d *counted) Submit(r *blockdev.Request) {
	if r.Op == blockdev.Write {
		d.written.Add(r.Length)
	}
	d.Device.Submit(r)
}

// A device that stands before another one embeds a Filter, and is asked for everything else as that one is.
func ExampleFilter() {
	below, err := bmem.Open(bmem.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	d := &counted{Filter: blockdev.Filter{Device: below}}
	pool := mem.NewPool(1 << 20)
	b, err := pool.Get(4096)
	if err != nil {
		log.Fatal(err)
	}
	clear(b.Bytes())
	for i := range int64(3) {
		r := &blockdev.Request{Op: blockdev.Write, Offset: i * 4096, Length: 4096, Data: []mem.Span{b.Span()}}
		if err := blockdev.Do(context.Background(), d, r); err != nil {
			log.Fatal(err)
		}
	}
	b.Release()
	fmt.Println(d.written.Load(), "bytes, can discard:", blockdev.Can(d, blockdev.Discard))
	if err := errors.Join(d.Close(), pool.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: 12288 bytes, can discard: true
}

// Errors mean the same on every device, and on a volume of another host.
func ExampleDo() {
	d, err := bmem.Open(bmem.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	beyond := &blockdev.Request{Op: blockdev.Discard, Offset: 1 << 20, Length: 4096}
	fmt.Println(errors.Is(blockdev.Do(context.Background(), d, beyond), blockdev.ErrRange))
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: true
}
