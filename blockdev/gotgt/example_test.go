package gotgt_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/blockdev/gotgt"
)

// A backing store of gotgt's becomes a device, to be served over iSER for example.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "disk.img")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<20)); err != nil {
		log.Fatal(err)
	}
	d, err := gotgt.Open("file:"+path, gotgt.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Geometry().Size, "bytes")
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: 1048576 bytes
}
