package rpcserver

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/transport"
)

// value checks that the last reply is a success of the current call, and returns its first word and the rest.
func (c *fabricClient) value(msg []byte) (v uint32, rest []byte) {
	c.t.Helper()
	if c.ended || c.got[c.xid] != 1 {
		c.t.Fatalf("%d replies to call %d, ended %v", c.got[c.xid], c.xid, c.ended)
	}
	r := xdr.NewReader(msg)
	xid, err := oncrpc.ParseReply(&r)
	if err != nil || xid != c.xid {
		c.t.Fatalf("reply %d to call %d: %v", xid, c.xid, err)
	}
	return r.Uint32(), r.Rest()
}

func (c *fabricClient) refused(code uint32) {
	c.t.Helper()
	if c.ended || c.last.h.XID != c.xid || c.last.h.Proc != rpcrdma.Error || c.last.h.ErrCode != code || c.last.h.Credits == 0 {
		c.t.Fatalf("the answer to call %d is %+v, ended %v; want error %d", c.xid, c.last.h, c.ended, code)
	}
}

// A long call: RDMA_NOMSG, with the message in a Position Zero Read chunk of any number of segments (RFC 8166 section
// 3.5.4).
func TestPositionZeroChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		for _, pieces := range []int{1, 2, 3} {
			h := c.header()
			h.Proc = rpcrdma.Nomsg
			msg := c.msg(procEcho, 77)
			at := 0
			for i := range pieces {
				n := len(msg) / pieces
				if i == pieces-1 {
					n = len(msg) - at
				}
				copy(c.bulk(at+i*4096, n).Bytes(), msg[at:]) // apart from one another in the client's memory
				h.Reads = append(h.Reads, rpcrdma.ReadSegment{Segment: c.bind(at+i*4096, n, transport.RemoteRead)})
				at += n
			}
			c.send(h.Append(nil))
			if v, _ := c.value(c.last.rest); v != 77 {
				t.Errorf("%d segments: %d", pieces, v)
			}
		}
	})
}

// A write chunk of several segments is filled in order, and comes back with the lengths that were used (RFC 8166 section
// 4.3.2); so is a reply chunk (section 4.3.3).
func TestMultiSegmentChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		sizes := []int{1000, 3000, 5000, 70_000}
		const payload = 1000 + 3000 + 1234
		segs := func() (l []rpcrdma.Segment) {
			for i, n := range sizes {
				clear(c.bulk(i<<17, n).Bytes())
				l = append(l, c.bind(i<<17, n, transport.RemoteWrite))
			}
			return l
		}
		collect := func(used []rpcrdma.Segment) (b []byte) {
			for i, s := range used {
				b = append(b, c.bulk(i<<17, int(s.Len)).Bytes()...)
			}
			return b
		}
		check := func(b []byte) {
			t.Helper()
			for i, x := range b {
				if x != byte(i) {
					t.Fatalf("byte %d of %d is %d", i, len(b), x)
				}
			}
		}
		h := c.header()
		h.AddWrite(segs()...)
		c.send(append(h.Append(nil), c.msg(procBulk, payload)...))
		if v, rest := c.value(c.last.rest); v != payload || len(rest) != 0 {
			t.Fatalf("%d, and %d bytes inline: the payload and its padding belong to the chunk", v, len(rest))
		}
		used := c.last.h.Segments(c.last.h.Writes[0])
		if len(used) != 4 || used[0].Len != 1000 || used[1].Len != 3000 || used[2].Len != 1234 || used[3].Len != 0 {
			t.Fatalf("used: %+v", used)
		}
		check(collect(used))

		h = c.header()
		h.SetReply(segs())
		c.send(append(h.Append(nil), c.msg(procBulk, payload)...))
		if c.last.h.Proc != rpcrdma.Nomsg || len(c.last.rest) != 0 {
			t.Fatalf("a long reply has procedure %d and %d bytes inline", c.last.h.Proc, len(c.last.rest))
		}
		v, rest := c.value(collect(c.last.h.Reply))
		if v != payload || len(rest) != payload+xdr.Pad(payload) {
			t.Fatalf("%d, %d bytes", v, len(rest))
		}
		check(rest[:payload])
	})
}

// An empty write chunk asks for its item inline, and comes back empty (RFC 8166 section 4.3.2.3); what stands behind it is unused. With a reply chunk
// the item is in the long reply.
func TestAnEmptyWriteChunkLeavesItsItemInline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		for _, second := range []bool{false, true} {
			for _, long := range []bool{false, true} {
				const payload = 1001
				h := c.header()
				h.AddWrite()
				if second {
					h.AddWrite(c.bind(0, 4096, transport.RemoteWrite))
				}
				if long {
					h.SetReply([]rpcrdma.Segment{c.bind(8192, 4096, transport.RemoteWrite)})
				}
				c.send(append(h.Append(nil), c.msg(procMiddle, payload)...))
				msg := c.last.rest
				if long {
					if c.last.h.Proc != rpcrdma.Nomsg || len(msg) != 0 {
						t.Fatalf("a long reply has procedure %d and %d bytes inline", c.last.h.Proc, len(msg))
					}
					msg = c.bulk(8192, int(c.last.h.Reply[0].Len)).Bytes()
				}
				v, rest := c.value(msg)
				checkMiddle(t, payload, v, rest)
				w := c.last.h.Writes
				if len(w) != len(h.Writes) || len(c.last.h.Segments(w[0])) != 0 || second && rpcrdma.Total(c.last.h.Segments(w[1])) != 0 {
					t.Errorf("the write list came back as %+v", c.last.h)
				}
			}
		}
	})
}

// RFC 8166 section 4.5: ERR_VERS names the versions there are, ERR_CHUNK refuses what cannot be used; and the
// connection, with its credits, goes on.
func TestErrVersAndErrChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		for range 3 * creditsPerStep { // each refusal gives its credit back
			h := c.header()
			h.Vers = 3
			c.send(append(h.Append(nil), c.msg(procEcho, 1)...))
			c.refused(rpcrdma.ErrVers)
			if c.last.h.Low != rpcrdma.Version || c.last.h.High != rpcrdma.Version {
				t.Fatalf("versions %d to %d", c.last.h.Low, c.last.h.High)
			}
			h = c.header()
			h.Reads = []rpcrdma.ReadSegment{{Position: 4, Segment: rpcrdma.Segment{Handle: 1, Len: 1 << 30}}}
			c.send(append(h.Append(nil), c.msg(procEcho, 1)...))
			c.refused(rpcrdma.ErrChunk)
		}
		c.granted(creditsPerStep)
	})
}

// The private message of RFC 8797 sets the inline threshold: a reply is never longer than what the client takes. Without
// the message that is 1024 bytes.
func TestPrivateMessageSetsTheInlineThreshold(t *testing.T) {
	for name, tc := range map[string]struct {
		private []byte
		fits    uint32 // bytes of payload
		not     uint32
	}{
		"none":        {nil, 900, 1000},
		"2048":        {rpcrdma.Private{SendSize: 2048, RecvSize: 2048}.Append(nil), 1900, 2048},
		"8192":        {rpcrdma.Private{SendSize: 8192, RecvSize: 8192}.Append(nil), 4000, 4096}, // the server's own bound
		"other magic": {[]byte{1, 2, 3, 4, 1, 1, 7, 7}, 900, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, _, connect, end := serveFabricWith(t, Options{}, tc.private)
				defer end()
				c := connect()
				own, found := rpcrdma.ParsePrivate(c.peer.Private)
				if !found || own.SendSize != defaultInline || own.RecvSize != defaultInline {
					t.Errorf("the server says %+v, %v", own, found)
				}
				h := c.header()
				c.send(append(h.Append(nil), c.msg(procBulk, tc.fits)...))
				c.value(c.last.rest)
				h = c.header()
				c.send(append(h.Append(nil), c.msg(procBulk, tc.not)...))
				c.refused(rpcrdma.ErrChunk)
			})
		})
	}
}

// RFC 8797 section 4.1: a reply invalidates memory of its call when the client can take that, and when there is only one
// STag that it could be.
func TestRemoteInvalidation(t *testing.T) {
	for _, able := range []bool{true, false} {
		priv := rpcrdma.Private{RemoteInv: able, SendSize: 4096, RecvSize: 4096}
		synctest.Test(t, func(t *testing.T) {
			_, _, connect, end := serveFabricWith(t, Options{}, priv.Append(nil))
			defer end()
			c := connect()
			seg := c.bind(0, 10_000, transport.RemoteWrite)
			h := c.header()
			h.AddWrite(seg)
			c.send(append(h.Append(nil), c.msg(procBulk, 10_000)...))
			c.value(c.last.rest)
			if want := map[bool]uint32{true: seg.Handle}[able]; c.last.inv != want {
				t.Errorf("able %v: STag 0x%x was invalidated, not 0x%x", able, c.last.inv, want)
			}
			h = c.header()
			h.AddWrite(c.bind(0, 5000, transport.RemoteWrite), c.bind(5000, 5000, transport.RemoteWrite))
			c.send(append(h.Append(nil), c.msg(procBulk, 10_000)...))
			c.value(c.last.rest)
			if c.last.inv != 0 {
				t.Errorf("one of two STags was invalidated: 0x%x", c.last.inv)
			}
		})
	}
}

// The reply cache knows no transport: a call that comes again over another connection, and in another form, is answered
// with the reply it had.
func TestReplyCacheOverRDMA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, connect, end := serveFabric(t, Options{})
		defer end()
		a, b := connect(), connect()
		h := a.header()
		msg := a.msg(procCount, 5)
		a.send(append(h.Append(nil), msg...))
		first, _ := a.value(a.last.rest)
		whole := bytes.Clone(a.last.rest)

		h = b.header() // the same XID: its first too
		h.Proc = rpcrdma.Nomsg
		copy(b.bulk(0, len(msg)).Bytes(), msg)
		h.Reads = []rpcrdma.ReadSegment{{Segment: b.bind(0, len(msg), transport.RemoteRead)}}
		b.send(h.Append(nil))
		second, _ := b.value(b.last.rest)
		if first != 1 || second != 1 || p.count.Load() != 1 || !bytes.Equal(whole, b.last.rest) || s.Stats().Replays != 1 {
			t.Errorf("replies %d and %d, executed %d times", first, second, p.count.Load())
		}
	})
}

// A client that exposes what the server is to read, and never completes the Reads, keeps its own credits and memory and
// nobody else's; when it is gone nothing is left of it.
func TestClientThatNeverCompletesItsReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: 16}})
		defer end() // would find buffers that were not given back
		bad, good := connect(), connect()
		seg := bad.bind(0, 1<<20, transport.RemoteRead)
		for range 14 {
			h := bad.header()
			msg := bad.msg(procEcho, 1)
			h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: seg}}
			bad.sendOnly(append(h.Append(nil), msg...)) // it never polls again: its side answers no Read
		}
		synctest.Wait()
		for range 100 {
			good.granted(16)
		}
		h := good.header()
		h.AddWrite(good.bind(0, MaxPayload, transport.RemoteWrite))
		good.send(append(h.Append(nil), good.msg(procBulk, MaxPayload)...))
		if v, _ := good.value(good.last.rest); v != MaxPayload {
			t.Errorf("%d bytes", v)
		}
		if n := p.count.Load(); n != 0 || len(bad.got) != 0 {
			t.Errorf("%d replies to the client whose data never came", len(bad.got))
		}
	})
}

// Strangers hold none of the memory that all clients share: the program is asked before anything is fetched.
func TestARefusedCallIsAnsweredBeforeItsDataIsFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p, connect, end := serveFabric(t, Options{})
		defer end()
		p.refuses.Store(true)
		c := connect()
		// Nothing is bound to this STag: the connection would end if it were read.
		c.call(procEcho, rpcrdma.ReadSegment{Segment: rpcrdma.Segment{Handle: 0xdead, Len: 1 << 20}})
		if c.ended || c.got[c.xid] != 1 {
			t.Errorf("%d replies, ended %v", c.got[c.xid], c.ended)
		}
		h := c.header()
		h.Proc = rpcrdma.Nomsg
		h.Reads = []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 0xdead, Len: maxLongCall + 4}}}
		c.send(h.Append(nil))
		c.refused(rpcrdma.ErrChunk)
	})
}

// A client that lets the server's Reads or replies lie holds their memory for a bounded time.
func TestAFabricConnectionThatDoesNotMoveIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, connect, end := serveFabric(t, Options{})
		defer end()
		bad, good := connect(), connect()
		seg := bad.bind(0, 1<<20, transport.RemoteRead)
		h := bad.header()
		msg := bad.msg(procEcho, 1)
		h.Reads = []rpcrdma.ReadSegment{{Position: uint32(len(msg)), Segment: seg}}
		bad.sendOnly(append(h.Append(nil), msg...)) // it never polls again: its side answers no Read
		for i := time.Duration(0); i < fabricTime-watchTick; i += watchTick {
			good.granted(creditsPerStep)
			time.Sleep(watchTick)
		}
		if n := s.Stats().Connections; n != 2 {
			t.Errorf("%d connections of two", n)
		}
		time.Sleep(3 * watchTick)
		good.granted(creditsPerStep)
		if st := s.Stats(); st.Connections != 1 || st.Refused["overdue"] != 1 {
			t.Errorf("%d connections, %v", st.Connections, st.Refused)
		}
		time.Sleep(idleTime + 2*watchTick)
		if n := s.Stats().Connections; n != 0 {
			t.Error("a connection without calls is kept")
		}
	})
}
