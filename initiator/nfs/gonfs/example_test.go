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
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// exported serves a directory of its own in this process over RDMA.
func exported() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	files, err := server.NewServer(server.Options{}, server.Export{Path: "/data", Dir: dir, Rights: server.Rights{Squash: server.SquashNone, Insecure: true}})
	if err != nil {
		log.Fatal(err)
	}
	srv, dev := rpcserver.NewServer(rpcserver.Options{}, files.Programs()...), iwarp.New(iwarp.Options{})
	l, err := dev.Listen(context.Background(), "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = srv.ServeRDMA(dev, l) }()
	return "nfs+rdma://" + l.Addr().String() + "/data", func() {
		if err := errors.Join(srv.Close(context.Background()), files.Close(), dev.Close(), os.RemoveAll(dir)); err != nil {
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
