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

// stamped is a call of a user with a credential of its own.
func stamped(xid, proc, stamp, uid uint32) []byte {
	c := oncrpc.Call{XID: xid, Prog: 400000, Vers: 1, Proc: proc}
	c.Cred = oncrpc.Auth{Flavor: oncrpc.AuthSys, Body: (&oncrpc.Sys{UID: uid}).Append(nil, stamp, strings.Repeat("m", 200))}
	b := xdr.AppendUint32(c.Append(make([]byte, 4)), 1)
	oncrpc.PutMark(b, len(b)-4, true)
	return b
}

// A repetition is known by its arguments: its credential may be made again, as old kernels of Linux do it.
func TestARepetitionIsKnownWhateverItsCredential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, l, end := servePipes(t, Options{})
		old := l.dial("10.0.0.1:700")
		ro := readAll(old)
		write(t, old, record(1, procEcho, 1))
		next := l.dial("10.0.0.1:701")
		rn := readAll(next)
		write(t, next, stamped(2, procWrite, 7, 0))
		synctest.Wait()
		write(t, old, stamped(2, procWrite, 8, 0))
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

// What must not be executed twice is answered with the reply that there was, also where the repetition has another stamp; the same call of another
// user is another call, and so is one with other arguments.
func TestTheReplyCacheKnowsARepetitionWhateverItsStamp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, l, end := servePipes(t, Options{})
		nc := l.dial("10.0.0.1:700")
		defer func() { _ = nc.Close(); end() }()
		ask := func(b []byte) uint32 {
			t.Helper()
			write(t, nc, b)
			m, err := message(nc)
			if err != nil {
				t.Fatal(err)
			}
			r := xdr.NewReader(m)
			if _, err := oncrpc.ParseReply(&r); err != nil {
				t.Fatal(err)
			}
			return r.Uint32()
		}
		first, again := ask(stamped(2, procCount, 7, 0)), ask(stamped(2, procCount, 8, 0))
		if first != 1 || again != 1 || p.count.Load() != 1 || s.Stats().Replays != 1 {
			t.Errorf("replies %d and %d, executed %d times, %d replays", first, again, p.count.Load(), s.Stats().Replays)
		}
		other := stamped(2, procCount, 7, 0)
		other[len(other)-1]++
		if ask(stamped(2, procCount, 7, 5)) != 2 || ask(other) != 3 || ask(record(2, procCount, 1)) != 4 {
			t.Error("a call of another user, or with other arguments, is taken for a repetition")
		}
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
