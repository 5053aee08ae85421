package error_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/blockdev"
	berror "github.com/sluice-storage/sluice/blockdev/error"
	bmem "github.com/sluice-storage/sluice/blockdev/mem"
)

// A test of what a program does then has a disk whose second flush fails.
func ExampleOpen() {
	below, err := bmem.Open(bmem.Options{Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	d, err := berror.Open(below, berror.Nth(2, blockdev.ErrMedium))
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		err := blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Flush})
		fmt.Println(errors.Is(err, blockdev.ErrMedium))
	}
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// false
	// true
	// false
}
