package nfs_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/initiator/rpcclient"
	"github.com/sluice-storage/sluice/internal/mount3"
	"github.com/sluice-storage/sluice/internal/nfs3"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/nfs"
	"github.com/sluice-storage/sluice/target/rpcserver"
)

// nameService knows that 127.0.0.2 is client.example.org, and can be away, or slow for addresses of 127.0.1.0/24.
type nameService struct {
	away atomic.Bool
	slow atomic.Int32 // questions that wait
	gate chan struct{}
}

func (n *nameService) LookupAddr(_ context.Context, addr string) ([]string, error) {
	if netip.MustParsePrefix("127.0.1.0/24").Contains(netip.MustParseAddr(addr)) {
		n.slow.Add(1)
		<-n.gate
		return nil, &net.DNSError{Err: "timeout", IsTimeout: true, IsTemporary: true}
	}
	switch {
	case n.away.Load():
		return nil, &net.DNSError{Err: "server misbehaving", IsTemporary: true}
	case addr == "127.0.0.2":
		return []string{"client.example.org."}, nil
	}
	return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
}

func (n *nameService) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	switch {
	case n.away.Load():
		return nil, errors.New("the network is unreachable")
	case host == "client.example.org":
		return []netip.Addr{netip.MustParseAddr("127.0.0.2")}, nil
	}
	return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
}

// answered makes a call and reports whether there was an answer within a moment.
func (r *raw) answered(prog, vers, proc uint32, args []byte) (first uint32, ok bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c := &rpcclient.Call{Prog: prog, Vers: vers, Proc: proc, Cred: r.cred, Args: args}
	if err := r.c.Do(ctx, c); err != nil {
		if ctx.Err() == nil {
			r.t.Fatal(err)
		}
		return 0, false
	}
	res := xdr.NewReader(c.Results)
	return res.Uint32(), true
}

// A name service that is away has not said that a client has another name: calls are answered JUKEBOX or not at all until
// it is back, and clients ask again.
func TestOutageOfTheNameServiceIsNoRefusal(t *testing.T) {
	for _, match := range []string{"client.example.org", "*.example.org"} {
		t.Run(match, func(t *testing.T) {
			n := &nameService{}
			n.away.Store(true)
			x := nfs.Export{Path: "/data", Dir: t.TempDir(), Clients: []nfs.Client{{Match: "127.0.0.1", Rights: open}, {Match: match, Rights: open}}}
			s := start(t, "tcp", nfs.Options{Names: n}, rpcserver.Options{}, x)
			root, _ := s.raw(t, 0, 0).mount("/data")
			get := nfs3.FHArgs{FH: root}
			path := mount3.PathArgs{Path: []byte("/data")}
			r := s.from(t, "127.0.0.2")
			for range 3 {
				if st, ok := r.answered(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcGetattr), get.Append(nil)); ok && nfs3.Status(st) != nfs3.ErrJukebox {
					t.Fatalf("GETATTR: %v", nfs3.Status(st))
				}
			}
			if st, ok := r.answered(mount3.Prog, mount3.Vers, mount3.ProcMnt, path.Append(nil)); ok {
				t.Fatalf("MNT is answered %v", mount3.Status(st))
			}
			n.away.Store(false)
			eventually(t, "the client's rights are known when the name service is back", func() bool {
				st, ok := r.answered(nfs3.Prog, nfs3.Vers, uint32(nfs3.ProcGetattr), get.Append(nil))
				if ok && nfs3.Status(st) != nfs3.ErrJukebox && nfs3.Status(st) != nfs3.OK {
					t.Fatalf("GETATTR: %v", nfs3.Status(st))
				}
				return ok && nfs3.Status(st) == nfs3.OK
			})
			if _, st := r.mount("/data"); st != mount3.OK {
				t.Errorf("MNT: %v", st)
			}
			// A name that it does not know is an answer, and so is another's.
			if _, st := s.from(t, "127.0.0.3").mount("/data"); st != mount3.ErrAcces {
				t.Errorf("MNT of a host without a name: %v", st)
			}
			// What it said stays in force while it is away.
			n.away.Store(true)
			if g := s.from(t, "127.0.0.2").getattr(root); g.Status != nfs3.OK {
				t.Errorf("on another connection, while the service is away: %v", g.Status)
			}
		})
	}
}

// Names that are slow to be had hold up their own hosts' calls.
func TestSlowNamesHoldNobodyUp(t *testing.T) {
	n := &nameService{gate: make(chan struct{})}
	x := nfs.Export{Path: "/data", Dir: t.TempDir(), Clients: []nfs.Client{{Match: "127.0.0.1", Rights: open}, {Match: "*.example.org", Rights: open}}}
	s := start(t, "tcp", nfs.Options{Names: n}, rpcserver.Options{}, x)
	r := s.raw(t, 0, 0)
	root, _ := r.mount("/data")
	var wg sync.WaitGroup
	const hosts = 100
	for i := range hosts {
		slow := s.from(t, netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}).String())
		wg.Go(func() {
			if g := slow.getattr(root); g.Status != nfs3.ErrJukebox {
				t.Errorf("GETATTR of a host whose name is not known yet: %v", g.Status)
			}
		})
	}
	eventually(t, "more names are asked for than there are workers", func() bool { return n.slow.Load() > 64 })
	for range 20 {
		if l := r.lookup(root, "."); l.Status != nfs3.OK {
			t.Fatal(l.Status)
		}
	}
	close(n.gate)
	wg.Wait()
}
