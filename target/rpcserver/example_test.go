package rpcserver_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// greeter is a program with one procedure: a name to a greeting.
type greeter struct{}

// ID is one of the numbers that are every user's to choose (RFC 5531 section 8.1).
func (greeter) ID() uint32                               { return 0x20000002 }
func (greeter) Versions() (low, high uint32)             { return 1, 1 }
func (greeter) Keeps(_, _ uint32) bool                   { return false }
func (greeter) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Inline }

func (greeter) Serve(c *rpcserver.Call) rpcserver.Verdict {
	if c.Proc != 1 {
		return c.NoProc()
	}
	name := c.Args.String(64)
	if c.Args.Err() != nil {
		return c.Garbage()
	}
	c.Out = rpcserver.AppendString(c.Out, "hello "+name)
	return rpcserver.Done
}

func ExampleProgram() {
	srv := rpcserver.NewServer(rpcserver.Options{}, greeter{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.ServeTCP(l) }()

	c := rpcclient.NewClient(rpcclient.TCP(l.Addr().String()), rpcclient.Options{})
	call := rpcclient.Call{Prog: 0x20000002, Vers: 1, Proc: 1, Args: rpcserver.AppendString(nil, "Alice")}
	if err := c.Do(context.Background(), &call); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", call.Results[4:4+binary.BigEndian.Uint32(call.Results)])

	var no *rpcclient.ReplyError
	tooLong := rpcclient.Call{Prog: 0x20000002, Vers: 1, Proc: 1, Args: rpcserver.AppendOpaque(nil, make([]byte, 65))}
	if errors.As(c.Do(context.Background(), &tooLong), &no) {
		fmt.Println(rpcserver.AcceptStat(no.Accept))
	}
	if err := errors.Join(c.Close(), srv.Close(context.Background())); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-served)
	// Output:
	// hello Alice
	// GARBAGE_ARGS
	// rpc: the server is closed
}
