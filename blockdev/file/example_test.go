package file_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/file"
	"github.com/sluice-storage/sluice/mem"
)

// A sparse file is made, and a block of it written durably. A second opening is refused while the first is there.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "disk.img")
	d, err := file.Open(path, file.Options{Size: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	pool := mem.NewPool(1 << 20)
	b, err := pool.Get(512)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(b.Bytes(), "a block")
	clear(b.Bytes()[n:])
	w := &blockdev.Request{Op: blockdev.Write, FUA: true, Offset: 4096, Length: 512, Data: []mem.Span{b.Span()}}
	if err := blockdev.Do(context.Background(), d, w); err != nil {
		log.Fatal(err)
	}
	_, err = file.Open(path, file.Options{})
	fmt.Println(d.Geometry().Size, "bytes, in use:", errors.Is(err, blockdev.ErrBusy))

	b.Release()
	if err := errors.Join(d.Close(), pool.Close()); err != nil {
		log.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", content[4096:4103])
	// Output:
	// 67108864 bytes, in use: true
	// a block
}
