package stand

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/nfs/lock"
	"github.com/sluice-storage/sluice/target/rpcserver"
	"github.com/sluice-storage/sluice/transport"
)

// Everyone are the rights of an export on which everyone may do everything.
var Everyone = nfs.Rights{Squash: nfs.SquashNone, Insecure: true}

// FileOptions say what a file server is made of.
type FileOptions struct {
	NFS   nfs.Options
	RPC   rpcserver.Options
	Locks *lock.Options // of a lock manager; nil is none. Where Call is nil its calls to clients fail
	More  []rpcserver.Program
	// Wrap is put around each program, for servers that are wrong on purpose.
	Wrap func(rpcserver.Program) rpcserver.Program
}

// Files is a file server. It serves nothing before TCP or RDMA.
type Files struct {
	NFS   *nfs.Server
	Locks *lock.Manager
	RPC   *rpcserver.Server

	t    T
	path string // of the first export
	runs []chan error
}

// NewFiles puts up a server of the exports.
func NewFiles(t T, o FileOptions, exports ...nfs.Export) *Files {
	t.Helper()
	f := &Files{t: t}
	f.Again(o, exports...)
	t.Cleanup(f.Stop)
	return f
}

// Again puts up another life of a server that was stopped. What the test left to its end before, a mount for one, still ends before the
// server does.
func (f *Files) Again(o FileOptions, exports ...nfs.Export) {
	f.t.Helper()
	f.path, f.runs, f.Locks = exports[0].Path, nil, nil
	var err error
	f.NFS, err = nfs.NewServer(o.NFS, exports...)
	must(f.t, err)
	programs := f.NFS.Programs()
	if o.Locks != nil {
		l := *o.Locks
		if l.Call == nil {
			l.Call = noCalls
		}
		f.Locks, err = lock.NewManager(l, f.NFS)
		must(f.t, err)
		programs = append(programs, f.Locks.Programs()...)
	}
	programs = append(programs, o.More...)
	if o.Wrap != nil {
		for i, p := range programs {
			programs[i] = o.Wrap(p)
		}
	}
	f.RPC = rpcserver.NewServer(o.RPC, programs...)
}

// noCalls is a network on which no client's status monitor can be reached.
func noCalls(context.Context, netip.Addr, netip.Addr, uint32, uint32, uint32, []byte) ([]byte, error) {
	return nil, net.ErrClosed
}

// TCP serves at addr, and returns where that is and the URL of the first export.
func (f *Files) TCP(addr string) (at netip.AddrPort, url string) {
	f.t.Helper()
	l, err := net.Listen("tcp", addr)
	must(f.t, err)
	f.run(func() error { return f.RPC.ServeTCP(l) })
	at = netip.MustParseAddrPort(l.Addr().String())
	return at, fmt.Sprintf("nfs://%s%s?mountport=%d", at, f.path, at.Port())
}

// RDMA is TCP over a fabric. The device is the test's to close, after Stop: t.Cleanup before NewFiles.
func (f *Files) RDMA(dev transport.Device, addr string) (at netip.AddrPort, url string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := dev.Listen(ctx, addr)
	must(f.t, err)
	f.run(func() error { return f.RPC.ServeRDMA(dev, l) })
	at = netip.MustParseAddrPort(l.Addr().String())
	return at, fmt.Sprintf("nfs+rdma://%s%s", at, f.path)
}

// Shared is RDMA through shared memory, at a socket's path.
func (f *Files) Shared(dev transport.Device, path string) (url string) {
	f.t.Helper()
	l, err := dev.Listen(context.Background(), path)
	must(f.t, err)
	f.run(func() error { return f.RPC.ServeRDMA(dev, l) })
	return fmt.Sprintf("nfs+rdma://%s?provider=shm&socket=%s", f.path, path)
}

func (f *Files) run(serve func() error) {
	done := make(chan error, 1)
	f.runs = append(f.runs, done)
	go func() { done <- serve() }()
}

// Stop ends the server, once. Every test's end calls it; a test that starts another life of the server does before.
func (f *Files) Stop() {
	if f.RPC == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	check(f.t, "close the RPC server", f.RPC.Close(ctx))
	for _, done := range f.runs {
		if err := <-done; err != nil && !errors.Is(err, rpcserver.ErrServerClosed) {
			f.t.Errorf("serve: %v", err)
		}
	}
	if f.Locks != nil {
		check(f.t, "close the lock manager", f.Locks.Close())
	}
	check(f.t, "close the file server", f.NFS.Close())
	f.RPC = nil
}
