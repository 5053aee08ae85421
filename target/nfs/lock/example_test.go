package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/nfs/lock"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// A server of files has a lock manager beside it, at the same ports.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	files, err := nfs.NewServer(nfs.Options{}, nfs.Export{Path: "/data", Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	state, err := os.MkdirTemp("", "state") // what clients have to be told of after a restart
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(state)
	locks, err := lock.NewManager(lock.Options{StateDir: state}, files)
	if err != nil {
		log.Fatal(err)
	}
	srv := rpcserver.NewServer(rpcserver.Options{}, append(files.Programs(), locks.Programs()...)...)
	fmt.Println(len(srv.Programs()), "programs,", locks.Locks(), "locks, grace:", locks.InGrace())
	if err := errors.Join(srv.Close(context.Background()), locks.Close(), files.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: 5 programs, 0 locks, grace: false
}
