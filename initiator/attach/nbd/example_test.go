package nbd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	bmem "github.com/sluice-storage/sluice/blockdev/mem"
	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/test/lib/blocktarget"
)

// A volume is shown to qemu, nbdcopy and other programs at a socket.
func Example() {
	disk, err := bmem.Open(bmem.Options{Size: 64 << 20})
	if err != nil {
		log.Fatal(err)
	}
	t, err := blocktarget.Start(disk, blocktarget.Options{})
	if err != nil {
		log.Fatal(err)
	}
	v, err := block.Open(context.Background(), t.URL("iser"), block.Options{})
	if err != nil {
		log.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "socket"))
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	s := nbd.New(v, nbd.Options{Name: "disk"})
	go func() { served <- s.Serve(ctx, l) }()

	// Here programs connect to nbd+unix:///disk?socket=...
	fmt.Println(s.Conns(), "clients")

	stop()
	if err := errors.Join(<-served, v.Close(), t.Close(), disk.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: 0 clients
}
