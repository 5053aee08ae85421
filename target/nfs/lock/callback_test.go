package lock

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// serveOne is a client's program on a port of its own, until stop is called.
func serveOne(t *testing.T, programs ...rpcserver.Program) (port uint16, stop func()) {
	t.Helper()
	srv := rpcserver.NewServer(rpcserver.Options{}, programs...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeTCP(l) }()
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := srv.Close(ctx); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, rpcserver.ErrServerClosed) {
			t.Error(err)
		}
	}
	return netip.MustParseAddrPort(l.Addr().String()).Port(), stop
}

func TestPortsAreRememberedUntilTheyFail(t *testing.T) {
	m, _ := manager(t, Options{})
	port, stop := serveOne(t, m.Programs()...)
	asked := 0
	k := &caller{find: func(context.Context, netip.Addr, netip.Addr, uint32, uint32) (uint16, string, error) {
		asked++
		return port, "tcp", nil
	}}
	here := netip.MustParseAddr("127.0.0.1")
	granted := func() (nlm4.Stat, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		a := lockArgs("a", "1", 0, 10)
		args := nlm4.TestArgs{Lock: a.Lock}
		b, err := k.call(ctx, here, here, nlm4.Prog, nlm4.Vers, nlm4.ProcGranted, args.Append(nil))
		if err != nil {
			return 0, err
		}
		r := xdr.NewReader(b)
		return stat(t, &r), nil
	}
	answered := func(lookups int) {
		t.Helper()
		if st, err := granted(); err != nil || st != nlm4.Denied || asked != lookups {
			t.Fatalf("%v, %v after %d questions for the port, not %d", st, err, asked, lookups)
		}
	}
	answered(1)
	answered(1)
	stop()
	if _, err := granted(); err == nil || asked != 2 {
		t.Fatalf("a client that is gone: %v after %d questions for the port", err, asked)
	}
	// It has restarted. Another program has its old port, and says that it knows nothing of locks.
	strange, stopStrange := serveOne(t, m.Programs()[1])
	defer stopStrange()
	port, stop = serveOne(t, m.Programs()...)
	defer stop()
	k.known[service{here, nlm4.Prog, nlm4.Vers}] = place{strange, "tcp"}
	answered(3)
	answered(3)
}
