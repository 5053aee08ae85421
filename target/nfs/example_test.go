package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"path/filepath"

	client "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// A directory is exported to all who can reach a port, and mounted.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "greeting"), []byte("hello"), 0o644); err != nil {
		log.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		log.Fatal(err)
	}
	files, err := nfs.NewServer(nfs.Options{}, nfs.Export{Path: "/data", Dir: dir, Rights: nfs.Rights{ReadOnly: true, Insecure: true}})
	if err != nil {
		log.Fatal(err)
	}
	srv := rpcserver.NewServer(rpcserver.Options{}, files.Programs()...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.ServeTCP(l) }() // and ServeRDMA(device, listener) for NFS over RDMA

	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	v, err := client.Open(context.Background(), "nfs://127.0.0.1:"+port+"/data?mountport="+port, client.Options{})
	if err != nil {
		log.Fatal(err)
	}
	b, err := fs.ReadFile(v, "greeting")
	fmt.Printf("%s %v\n", b, err)
	err = v.WriteFile(context.Background(), "greeting", []byte("bye"), 0o644)
	fmt.Println("read-only:", errors.Is(err, client.ErrReadOnly))
	for _, s := range files.Stats() {
		if s.Export == "/data" {
			fmt.Println(s.Read, "bytes were read")
		}
	}

	if err := errors.Join(v.Close(), srv.Close(context.Background())); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-served)
	if err := files.Close(); err != nil { // after the last call
		log.Fatal(err)
	}
	// Output:
	// hello <nil>
	// read-only: true
	// 5 bytes were read
	// rpc: the server is closed
}
