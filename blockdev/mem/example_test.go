package mem_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/blockdev"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/mem"
)

// Every block device is used in this way: a file, a volume of another machine, one of a program's own.
func Example() {
	d, err := bmem.Open(bmem.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	pool := mem.NewPool(1 << 20)
	b, err := pool.Get(512)
	if err != nil {
		log.Fatal(err)
	}
	copy(b.Bytes(), "a block")
	r := &blockdev.Request{Op: blockdev.Write, Offset: 4096, Length: 512, Data: []mem.Span{b.Span()}}
	if err := blockdev.Do(context.Background(), d, r); err != nil {
		log.Fatal(err)
	}
	status := &blockdev.Request{Op: blockdev.Status, Length: d.Geometry().Size, Extents: make([]blockdev.Extent, 0, 4)}
	if err := blockdev.Do(context.Background(), d, status); err != nil {
		log.Fatal(err)
	}
	for _, e := range status.Extents {
		fmt.Println(e.Offset, e.Length, e.Mapped)
	}
	b.Release()
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 0 65536 true
	// 65536 983040 false
}
