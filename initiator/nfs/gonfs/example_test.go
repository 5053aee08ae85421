package gonfs_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/initiator/nfs/gonfs"
	server "github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// exported serves a directory of its own in this process over RDMA.
func exported() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	var t stand.Script
	dev := iwarp.New(iwarp.Options{})
	_, url = stand.NewFiles(&t, stand.FileOptions{}, server.Export{Path: "/data", Dir: dir, Rights: stand.Everyone}).RDMA(dev, "127.0.0.1:0")
	return url, func() {
		if err := errors.Join(t.End(), dev.Close(), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}
}

func ExampleOpen() {
	url, stop := exported() // nfs+rdma://127.0.0.1:PORT/data
	defer stop()
	v, err := gonfs.Open(context.Background(), url, nfs.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = v.Close() }()
	f, err := v.OpenFile("notes", 0o644)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := f.Write([]byte("as before")); err != nil { // durable when it has returned
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
	i, _, err := v.Lookup("notes")
	fmt.Println(i.Size(), err)
	_, err = v.Mkdir("notes", 0o755)
	fmt.Println(os.IsExist(err))
	// Output:
	// 9 <nil>
	// true
}
