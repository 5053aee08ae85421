package shm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/shm"
)

// Two processes of one host connect by a socket in the file system; here both ends are in one. The listener admits its own user only.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	dev := shm.New(shm.Options{Admit: func(c *transport.Process) error {
		if int(c.UID) != os.Getuid() {
			return errors.New("another user")
		}
		return nil
	}})
	l, err := dev.Listen(ctx, filepath.Join(dir, "socket"))
	if err != nil {
		log.Fatal(err)
	}
	accepted := make(chan error)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			accepted <- err
			return
		}
		q, err := dev.NewQP(transport.QPOptions{})
		if err == nil {
			err = r.Accept(ctx, q, transport.ConnParams{Private: append([]byte("welcome, "), r.Peer().Private...)})
		}
		accepted <- err
	}()

	q, err := dev.NewQP(transport.QPOptions{})
	if err != nil {
		log.Fatal(err)
	}
	peer, err := dev.Dial(ctx, l.Addr().String(), q, transport.ConnParams{Private: []byte("Alice")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", peer.Private)
	if err := errors.Join(<-accepted, l.Close(), dev.Close()); err != nil {
		log.Fatal(err)
	}
	// Output: welcome, Alice
}
