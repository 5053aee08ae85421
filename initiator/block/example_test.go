package block_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
)

// demo serves a disk of 64 MiB in memory in this process; the examples reach it by the URL.
func demo() (url string, end func()) {
	var t stand.Script
	s := serve(&t, stand.BlockOptions{}, scsi.LUOptions{Device: stand.Disk(&t, 64<<20), Name: "disk"})
	return s.URL("iser"), func() {
		if err := t.End(); err != nil {
			log.Fatal(err)
		}
	}
}

func ExampleOpen() {
	url, end := demo() // iser://host/iqn.2026-11.io.sluice:default/0
	defer end()
	v, err := block.Open(context.Background(), url, block.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	if _, err := v.WriteAt([]byte("hello"), 1000); err != nil {
		log.Fatal(err)
	}
	if err := v.Sync(); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := v.ReadAt(b, 1000); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s of %d bytes\n", b, v.Size())
	// Output: hello of 67108864 bytes
}

func ExampleOpen_errors() {
	url, end := demo()
	defer end()
	_, err := block.Open(context.Background(), strings.Replace(url, "disk", "another", 1), block.Options{})
	fmt.Println(errors.Is(err, block.ErrNoTarget), errors.Is(err, block.ErrAuth))
	// Output: true false
}

func ExampleVolume_Writer() {
	url, end := demo()
	defer end()
	ctx := context.Background()
	v, err := block.Open(ctx, url, block.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	n, err := io.Copy(v.Writer(ctx), strings.NewReader(strings.Repeat("0123456789", 300_000)))
	if err != nil {
		log.Fatal(err)
	}
	if err := v.Sync(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(n)
	// Output: 3000000
}

// Requests in registered memory are not copied, and many are under way at once.
func ExampleVolume_Submit() {
	url, end := demo()
	defer end()
	v, err := block.Open(context.Background(), url, block.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer v.Close()
	const n, size = 8, 64 << 10
	done := make(chan error, n) // Done must not block
	for i := range n {
		buf, err := v.Memory().Get(size)
		if err != nil {
			log.Fatal(err)
		}
		v.Submit(&blockdev.Request{Op: blockdev.Write, FUA: true, Offset: int64(i) * size, Length: size, Data: []mem.Span{buf.Span()},
			Done: func(r *blockdev.Request) {
				buf.Release()
				done <- r.Err
			}})
	}
	for range n {
		if err := <-done; err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(n, "writes are durable")
	// Output: 8 writes are durable
}
