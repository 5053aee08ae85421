package rpcclient_test

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

// double is a program that answers with twice its argument.
type double struct{}

func (double) ID() uint32                               { return 0x20000001 }
func (double) Versions() (low, high uint32)             { return 1, 1 }
func (double) Keeps(_, _ uint32) bool                   { return false }
func (double) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Inline }
func (double) Serve(c *rpcserver.Call) (v rpcserver.Verdict) {
	c.Out = binary.BigEndian.AppendUint32(c.Out, 2*c.Args.Uint32())
	return rpcserver.Done
}

func ExampleClient_Do() {
	srv := rpcserver.NewServer(rpcserver.Options{}, double{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() { _ = srv.ServeTCP(l) }()
	defer func() { _ = srv.Close(context.Background()) }()

	c := rpcclient.NewClient(rpcclient.TCP(l.Addr().String()), rpcclient.Options{})
	defer func() { _ = c.Close() }()
	call := rpcclient.Call{Prog: 0x20000001, Vers: 1, Proc: 1, Args: binary.BigEndian.AppendUint32(nil, 21)}
	if err := c.Do(context.Background(), &call); err != nil {
		log.Fatal(err)
	}
	fmt.Println(binary.BigEndian.Uint32(call.Results))

	call = rpcclient.Call{Prog: 0x20000001, Vers: 2, Proc: 1}
	var refused *rpcclient.ReplyError
	if errors.As(c.Do(context.Background(), &call), &refused) {
		fmt.Println("versions", refused.Low, "to", refused.High)
	}
	// Output:
	// 42
	// versions 1 to 1
}
