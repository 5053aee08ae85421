package lock

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/nlm4"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/target/filesystem/filelock"
)

// toldOnce is told of one lock.
type toldOnce chan *filelock.Grant

func (w toldOnce) Tell(g *filelock.Grant) bool {
	w <- g
	return true
}

// A lock of another protocol on the same file stands in a client's way, TEST names its owner, and what is unlocked by one wakes the other.
func TestAnotherProtocolSharesTheLocks(t *testing.T) {
	table := filelock.NewTable()
	m, c := manager(t, Options{Table: table})
	a := lockArgs("a", "1", 5, 10)
	// Its name is as the NLM client's: owners of two protocols are two all the same.
	theirs := lockOf(&a.Lock, true, answerTo{addr: netip.MustParseAddr("192.0.2.1")})
	theirs.Owner.Client.Protocol, theirs.Owner.Name = "other", "7 of its"
	// A handle of another export is of the same file.
	on := filelock.File{Key: "f", Handle: []byte("another handle")}
	if v := table.Lock(on, theirs, filelock.Ask{}); v != filelock.Granted {
		t.Fatal(v)
	}
	var tr nlm4.TestRes
	tr.Parse(do(m, 0, 1, nlm4.ProcTest, &nlm4.TestArgs{Exclusive: true, Lock: a.Lock}))
	if h := tr.Holder; tr.Stat != nlm4.Denied || !h.Exclusive || h.SVID != 0 || string(h.Owner) != "7 of its" || h.Off != 5 || h.Len != 10 {
		t.Errorf("TEST: %v, %+v", tr.Stat, h)
	}
	a.Block = true
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Blocked {
		t.Fatal(s)
	}
	if v := table.Unlock(on, theirs); v != filelock.Granted {
		t.Fatal(v)
	}
	g := c.next(t)
	var ga nlm4.TestArgs
	r := xdr.NewReader(g.args)
	if ga.Parse(&r); g.proc != nlm4.ProcGranted || ga.Lock.Off != 5 || string(ga.Lock.Owner) != "1" {
		t.Fatalf("%+v %+v", g, ga)
	}
	m.wg.Wait()
	w := make(toldOnce, 1)
	if v := table.Lock(on, theirs, filelock.Ask{Waiter: w}); v != filelock.Blocked {
		t.Fatal(v)
	}
	if s := stat(t, do(m, 0, 1, nlm4.ProcUnlock, &nlm4.UnlockArgs{Lock: a.Lock})); s != nlm4.Granted {
		t.Fatal(s)
	}
	(<-w).End(true)
	a.Block = false
	if s := stat(t, do(m, 0, 1, nlm4.ProcLock, &a)); s != nlm4.Denied {
		t.Fatal(s)
	}
	// Nor does the restart of the NLM client free what the other one has.
	if do(m, 1, 1, nlm4.NSMProcNotify, &nlm4.Notify{Name: []byte("a"), State: 3}); m.Locks() != 1 {
		t.Error("one protocol freed what another holds")
	}
}

// TEST tells what LOCK was asked for by.
func TestAHolderIsNamedAsItNamesItself(t *testing.T) {
	for _, owner := range []string{"", "1", " ", "2 3", "\x00\xff 9"} {
		for _, svid := range []uint32{0, 1, 1 << 31, 1<<32 - 1} {
			for _, r := range [][2]uint64{{0, 0}, {5, 10}, {1 << 63, 0}} {
				in := nlm4.Lock{Caller: []byte("a"), Owner: []byte(owner), SVID: svid, Off: r[0], Len: r[1]}
				l := lockOf(&in, true, answerTo{addr: netip.MustParseAddr("192.0.2.1")})
				if h := holderOf(&l); string(h.Owner) != owner || h.SVID != svid || h.Off != r[0] || h.Len != r[1] || !h.Exclusive {
					t.Errorf("%+v is named %+v", in, h)
				}
			}
		}
	}
}

// The name of another protocol's owner may be longer than what a client takes.
func TestALongNameOfAnotherProtocolFits(t *testing.T) {
	l := filelock.Lock{Owner: filelock.Owner{Client: filelock.Client{Protocol: "other"}, Name: strings.Repeat("n", 3000)}}
	res := nlm4.TestRes{Stat: nlm4.Denied, Holder: holderOf(&l)}
	r := xdr.NewReader(res.Append(nil))
	var got nlm4.TestRes
	if got.Parse(&r); r.Err() != nil || len(got.Holder.Owner) != maxOwner {
		t.Errorf("%v, %d bytes", r.Err(), len(got.Holder.Owner))
	}
}

// A client hears that there is no room: in place of a range that may not be split, of a wait, and of a share.
func TestThatThereIsNoRoomIsSaid(t *testing.T) {
	m, _ := manager(t, Options{})
	a := lockArgs("a", "1", 0, 0)
	stat(t, do(m, 0, 1, nlm4.ProcLock, &a))
	u := nlm4.UnlockArgs{Lock: a.Lock}
	u.Lock.Len = 1
	var got nlm4.Stat
	for i := 0; i < 10_000 && got == nlm4.Granted; i++ {
		u.Lock.Off += 10
		got = stat(t, do(m, 0, 1, nlm4.ProcUnlock, &u))
	}
	if got != nlm4.DeniedNolocks {
		t.Errorf("UNLOCK: %v, with %d ranges", got, m.Locks())
	}
	for i := range 10_000 {
		s := nlm4.ShareArgs{Caller: []byte("a"), FH: []byte("g"), Owner: []byte{byte(i), byte(i >> 8)}, Access: 1}
		var r nlm4.ShareRes
		if r.Parse(do(m, 0, 1, nlm4.ProcShare, &s)); r.Stat != nlm4.Granted {
			got = r.Stat
			break
		}
		got = nlm4.Granted
	}
	if got != nlm4.DeniedNolocks {
		t.Errorf("SHARE: %v", got)
	}
	b := lockArgs("b", "1", 1<<62, 1)
	b.Block, got = true, nlm4.Blocked
	for i := 0; i < 10_000 && got == nlm4.Blocked; i++ {
		b.Lock.SVID++
		got = stat(t, do(m, 0, 2, nlm4.ProcLock, &b))
	}
	if got != nlm4.DeniedNolocks {
		t.Errorf("LOCK: %v", got)
	}
}
