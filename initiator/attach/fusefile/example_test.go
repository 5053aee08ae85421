package fusefile_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sluice-storage/sluice/initiator/attach/fusefile"
	"github.com/sluice-storage/sluice/initiator/block"
)

// A volume becomes a file, which any program can open, copy or loop-mount. An ordinary user needs fusermount3.
func ExampleMount() {
	v, err := block.Open(context.Background(), "iser://192.0.2.1/iqn.2026-11.io.sluice:default/0", block.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	m, err := fusefile.Mount("/mnt/volumes", "disk.img", v, false)
	if err != nil {
		log.Fatal(err)
	}
	if fi, err := os.Stat("/mnt/volumes/disk.img"); err == nil {
		fmt.Println(fi.Size() == v.Size())
	}
	if err := m.Unmount(false); err != nil { // fusemount.ErrBusy while the file is open
		log.Fatal(err)
	}
	<-m.Gone()
}
