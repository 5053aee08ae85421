package nfs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"strings"

	infs "github.com/sluice-storage/sluice/initiator/nfs"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// exported serves a directory of its own in this process, for the examples.
func exported() (url string, stop func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	var t stand.Script
	_, url = serve(&t, dir, everything)
	return url, func() {
		if err := errors.Join(t.End(), os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}
}

func ExampleOpen() {
	url, stop := exported() // nfs+rdma://127.0.0.1:PORT/data
	defer stop()
	ctx := context.Background()
	fsys, err := infs.Open(ctx, url, infs.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = fsys.Close() }()
	if err := fsys.WriteFile(ctx, "greeting", []byte("hello"), 0o644); err != nil {
		log.Fatal(err)
	}
	b, err := fs.ReadFile(fsys, "greeting")
	fmt.Printf("%s %v\n", b, err)
	// Output: hello <nil>
}

func ExampleFile_ReadFrom() {
	url, stop := exported()
	defer stop()
	ctx := context.Background()
	fsys, err := infs.Open(ctx, url, infs.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = fsys.Close() }()
	f, err := fsys.Create(ctx, "copy", 0o644)
	if err != nil {
		log.Fatal(err)
	}
	n, err := io.Copy(f, strings.NewReader("what is to be stored"))
	if err = errors.Join(err, f.Close()); err != nil { // Close has made it durable
		log.Fatal(err)
	}
	fmt.Println(n, "bytes")
	// Output: 20 bytes
}

func ExampleError() {
	url, stop := exported()
	defer stop()
	fsys, err := infs.Open(context.Background(), url, infs.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = fsys.Close() }()
	_, err = fsys.Open("none")
	var e *infs.Error
	if errors.As(err, &e) {
		fmt.Println(e.Op, e.Path, e.Status.Name())
	}
	fmt.Println(errors.Is(err, fs.ErrNotExist), errors.Is(err, infs.ErrNoSpace))
	// Output:
	// open none NFS3ERR_NOENT
	// true false
}
