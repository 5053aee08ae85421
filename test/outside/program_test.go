package outside_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// sums is an RPC program: its procedure 1 adds two numbers.
type sums struct{}

func (sums) ID() uint32                               { return 0x20000001 }
func (sums) Versions() (low, high uint32)             { return 1, 1 }
func (sums) Keeps(_, _ uint32) bool                   { return false }
func (sums) Classify(*rpcserver.Call) rpcserver.Class { return rpcserver.Inline }

func (sums) Serve(c *rpcserver.Call) rpcserver.Verdict {
	if c.Proc != 1 {
		return c.NoProc()
	}
	sum := c.Args.Uint32() + c.Args.Uint32()
	if c.Args.Err() != nil {
		return c.Garbage()
	}
	c.Out = binary.BigEndian.AppendUint32(c.Out, sum)
	return rpcserver.Done
}

func TestAProgramOfOnesOwnIsServed(t *testing.T) {
	srv := rpcserver.NewServer(rpcserver.Options{}, sums{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var runs sync.WaitGroup
	runs.Go(func() { _ = srv.ServeTCP(l) })
	c := rpcclient.NewClient(rpcclient.TCP(l.Addr().String()), rpcclient.Options{})
	call := rpcclient.Call{Prog: sums{}.ID(), Vers: 1, Proc: 1, Args: []byte{0, 0, 0, 40, 0, 0, 0, 2}}
	if err := c.Do(t.Context(), &call); err != nil || binary.BigEndian.Uint32(call.Results) != 42 {
		t.Errorf("% x, %v", call.Results, err)
	}
	for want, call := range map[rpcserver.AcceptStat]rpcclient.Call{
		rpcserver.GarbageArgs: {Prog: sums{}.ID(), Vers: 1, Proc: 1, Args: []byte{0, 0, 0, 40}},
		rpcserver.ProcUnavail: {Prog: sums{}.ID(), Vers: 1, Proc: 2},
	} {
		var refusal *rpcclient.ReplyError
		if err := c.Do(t.Context(), &call); !errors.As(err, &refusal) || refusal.Accept != uint32(want) {
			t.Errorf("procedure %d with % x: %v", call.Proc, call.Args, err)
		}
	}
	if err := errors.Join(c.Close(), srv.Close(context.Background())); err != nil {
		t.Error(err)
	}
	runs.Wait()
}
