package null_test

import (
	"context"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/null"
)

// A petabyte that costs nothing shows what the layers above a medium cost.
func ExampleOpen() {
	d, err := null.Open(null.Options{Size: 1 << 50})
	if err != nil {
		log.Fatal(err)
	}
	flush := &blockdev.Request{Op: blockdev.Flush}
	fmt.Println(d.Geometry().Size>>40, "TiB,", blockdev.Do(context.Background(), d, flush))
	if err := d.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: 1024 TiB, <nil>
}
