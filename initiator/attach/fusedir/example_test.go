package fusedir_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/sluice-storage/sluice/initiator/attach/fusedir"
	"github.com/sluice-storage/sluice/initiator/nfs"
)

// An export becomes a directory of this machine, without a mount of NFS. An ordinary user needs fusermount3.
func ExampleMount() {
	ctx := context.Background()
	v, err := nfs.Open(ctx, "nfs+rdma://192.0.2.1/data", nfs.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	m, err := fusedir.Mount(ctx, "/mnt/data", v, fusedir.Options{})
	if errors.Is(err, fusedir.ErrNoFUSE) {
		log.Fatal("modprobe fuse")
	}
	if err != nil {
		log.Fatal(err)
	}
	entries, err := os.ReadDir("/mnt/data")
	fmt.Println(len(entries), err)
	if err := m.Unmount(false); err != nil { // fusemount.ErrBusy while files are open
		log.Fatal(err)
	}
}
