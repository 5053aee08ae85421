package ublk_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/sluice-storage/sluice/initiator/attach/ublk"
	"github.com/sluice-storage/sluice/initiator/block"
)

// A volume becomes a block device of this machine, until the program ends it. It needs root, and a kernel with the driver.
func ExampleStart() {
	ctx := context.Background()
	v, err := block.Open(ctx, "iser://192.0.2.1/iqn.2026-11.io.sluice:default/0", block.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	d, err := ublk.Start(ctx, v, ublk.Options{})
	if errors.Is(err, ublk.ErrNoDriver) {
		log.Fatal("modprobe ublk_drv")
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Path()) // /dev/ublkb0
	if err := d.Stop(false); errors.Is(err, ublk.ErrBusy) {
		log.Print("unmount it first")
		<-d.Gone()
	}
}
