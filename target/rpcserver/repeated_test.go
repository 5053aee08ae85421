package rpcserver

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// A repetition is known by its arguments: its credential may be made anew, as old kernels of Linux do it.
func TestARepetitionIsKnownWhateverItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, l, end := servePipes(t, Options{})
		call := func(stamp uint32) []byte {
			c := oncrpc.Call{XID: 2, Prog: 400000, Vers: 1, Proc: procWrite}
			c.Cred = oncrpc.Auth{Flavor: oncrpc.AuthSys, Body: (&oncrpc.Sys{}).Append(nil, stamp, strings.Repeat("m", 200))}
			b := xdr.AppendUint32(c.Append(make([]byte, 4)), 1)
			oncrpc.PutMark(b, len(b)-4, true)
			return b
		}
		old := l.dial("10.0.0.1:700")
		ro := readAll(old)
		write(t, old, record(1, procEcho, 1))
		next := l.dial("10.0.0.1:701")
		rn := readAll(next)
		write(t, next, call(7))
		synctest.Wait()
		write(t, old, call(8))
		synctest.Wait()
		if n := p.count.Load(); n != 1 || rn.n.Load() != 1 || !ro.end.Load() {
			t.Errorf("executed %d times, %d replies to the repetition; the older connection has ended: %v", n, rn.n.Load(), ro.end.Load())
		}
		if n := s.Stats().Refused["repeated"]; n != 1 {
			t.Errorf("%d are counted", n)
		}
		_, _ = old.Close(), next.Close()
		end()
	})
}

// Neither calls of those who have no right nor those of one network by many addresses cost a client the replies to its own.
func TestNoStrangerAndNoNetworkFlushesRepliesFromTheCache(t *testing.T) {
	for _, other := range []struct {
		name, from string
		proc       uint32
	}{{"strangers", "10.1.%d.%d:700", procAsk}, {"a network", "[2001:db8::%d:%d]:700", procCount}} {
		t.Run(other.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p, l, end := servePipes(t, Options{})
				defer end()
				ask := func(nc net.Conn, xid, proc uint32) {
					write(t, nc, record(xid, proc, 1))
					if _, err := message(nc); err != nil {
						t.Fatal(err)
					}
				}
				a := l.dial("10.0.0.1:700")
				defer func() { _ = a.Close() }()
				for i := range uint32(200) {
					ask(a, i, procCount)
				}
				const hosts = 300
				for h := range hosts {
					b := l.dial(fmt.Sprintf(other.from, h/100, h%100))
					for i := range uint32(1 + cacheEntries/hosts) {
						ask(b, i, other.proc)
					}
					_ = b.Close()
				}
				before := p.count.Load()
				for i := range uint32(200) {
					ask(a, i, procCount)
				}
				if n := p.count.Load() - before; n != 0 {
					t.Errorf("%d of 200 calls were executed a second time", n)
				}
			})
		})
	}
}
