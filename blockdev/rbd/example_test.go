package rbd_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/blockdev/rbd"
)

// An image is opened as a client of its own, and is a block device as any other. Where there is no Ceph the error says what is missing.
func ExampleOpen() {
	d, err := rbd.Open(rbd.Options{Cluster: rbd.Cluster{Conf: "/nonexistent/ceph.conf", User: "sluice"}, Pool: "rbd", Image: "data"})
	switch {
	case rbd.Available() != nil, errors.Is(err, syscall.ENOENT):
		fmt.Println("there is no such cluster here")
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	fmt.Println(blockdev.Do(context.Background(), d, &blockdev.Request{Op: blockdev.Flush}), d.Close())
	// Output: there is no such cluster here
}
