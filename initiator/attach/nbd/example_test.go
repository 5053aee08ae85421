package nbd_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/initiator/attach/nbd"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// A volume is shown to qemu, nbdcopy and other programs at a socket.
func Example() {
	var t stand.Script
	target := stand.NewBlocks(&t, stand.BlockOptions{Server: iscsi.Options{Device: iwarp.New(iwarp.Options{})}}, scsi.LUOptions{Device: stand.Disk(&t, 64<<20), Name: "disk"})
	target.Portal("127.0.0.1", 1)
	v, err := block.Open(context.Background(), target.URL("iser"), block.Options{})
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
	if err := errors.Join(<-served, v.Close(), t.End()); err != nil {
		log.Fatal(err)
	}
	// Output: 0 clients
}
