package mem_test

import (
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/mem"
)

// A pool hands out buffers of up to mem.MaxBuf bytes. A fabric device that OnSlab names knows all of them, so that requests
// move data from and to them without a copy.
func ExamplePool() {
	p := mem.NewPool(16 << 20) // bytes at most
	b, err := p.Get(4096)
	if err != nil {
		log.Fatal(err)
	}
	copy(b.Bytes(), "data")
	s := b.Span().Cut(0, 4) // what a request names
	fmt.Printf("%s, %d bytes in use\n", s.Bytes(), p.Used())
	b.Release()
	if err := p.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: data, 4096 bytes in use
}
