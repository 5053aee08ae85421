package rpcserver

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// plainProgram asks nothing about calls whose argument is not here yet.
type plainProgram struct{ Program }

func (plainProgram) ID() uint32 { return 400001 }

// What a stranger's call offers is fetched only where a program that has bulk arguments wants it.
func TestNothingBulkyIsFetchedForAStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{})
		defer end()
		s.progs[400001] = plainProgram{p}
		c := connect()
		// Nothing is bound to this STag: the connection would end if it were read.
		bulk := rpcrdma.Segment{Handle: 0xdead, Len: 1 << 20}
		h := c.header()
		h.Proc = rpcrdma.Nomsg
		h.Reads = []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 0xdead, Len: 40}}, {Position: 40, Segment: bulk}}
		c.send(h.Append(nil))
		if c.ended {
			t.Fatal("the second chunk of a message that is in a chunk itself is fetched")
		}
		c.refused(rpcrdma.ErrChunk)
		h = c.header()
		rc := oncrpc.Call{XID: c.xid, Prog: 400001, Vers: 1, Proc: procEcho}
		msg := xdr.AppendUint32(rc.Append(nil), 1)
		h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: bulk}}
		c.send(append(h.Append(nil), msg...))
		if c.ended || c.got[c.xid] != 1 {
			t.Errorf("a chunk for a program without bulk arguments: %d replies, ended %v", c.got[c.xid], c.ended)
		}
		if n := s.Stats().Refused["arguments"]; n != 1 {
			t.Errorf("%d refusals are counted", n)
		}
	})
}

// The refusal of a stranger's call, before its data is fetched, waits for memory as any other reply does.
func TestTheRefusalOfAStrangersCallWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var denials atomic.Int32
		mem.SetDrought(&mem.Drought{Deny: func(int) bool { return denials.Add(-1) >= 0 }})
		defer mem.SetDrought(nil)
		_, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.refuses.Store(true)
		c := connect()
		h := c.header()
		msg := c.msg(procEcho, 1)
		h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: c.bind(0, 4096, transport.RemoteRead)}}
		h.SetReply([]rpcrdma.Segment{c.bind(8192, 4096, transport.RemoteWrite)})
		denials.Store(1)
		c.send(append(h.Append(nil), msg...))
		if n := denials.Load(); n >= 1 {
			t.Fatal("the reply asked for no memory")
		}
		if c.ended || c.got[c.xid] != 1 {
			t.Errorf("%d replies, ended %v", c.got[c.xid], c.ended)
		}
	})
}

// Calls keep no connection alive whose client does not answer the server's Reads.
func TestCallsDoNotHideReadsThatLie(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, connect, end := serveFabric(t, Options{})
		defer end()
		bad := connect()
		seg := bad.bind(0, 1<<20, transport.RemoteRead)
		h := bad.header()
		msg := bad.msg(procEcho, 1)
		h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: seg}}
		bad.sendOnly(append(h.Append(nil), msg...)) // it never polls again: its side answers no Read
		for i := time.Duration(0); i < fabricTime+3*watchTick; i += watchTick {
			h := bad.header()
			bad.sendOnly(append(h.Append(nil), bad.msg(0, 1)...))
			time.Sleep(watchTick)
		}
		if st := s.Stats(); st.Connections != 0 || st.Refused["overdue"] != 1 {
			t.Errorf("%d connections, %v", st.Connections, st.Refused)
		}
	})
}
