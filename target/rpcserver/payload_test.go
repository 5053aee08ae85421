package rpcserver

import (
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/transport"
)

// behind is what middle appends after its payload.
var behind = bytes.Repeat([]byte{0xbe, 0xa1, 0xf0, 0x0d}, 700)

func bulkOf(n uint32) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) | 1
	}
	return b
}

// middle answers a length, that many bytes, and further results behind them, as a COMPOUND of NFS version 4 does.
func (p *program) middle(c *Call, n uint32) Verdict {
	c.Out = xdr.AppendUint32(c.Out, n)
	if fd, ok := c.Loan(int(n), 0); ok {
		p.lent.Add(1)
		if k, err := unix.Write(fd, bulkOf(n)); k != int(n) || err != nil {
			return c.Fail(SystemErr)
		}
	} else {
		sink, err := c.Sink(int(n))
		if errors.Is(err, ErrNoMemory) {
			return Later
		} else if err != nil {
			return c.Fail(SystemErr)
		}
		b := bulkOf(n)
		for _, s := range sink {
			b = b[copy(s, b):]
		}
	}
	c.SetPayload(int(n))
	c.Out = append(c.Out, behind...)
	return Done
}

var middleSizes = []uint32{0, 1, 2, 3, 4, 5, 1000, 1023}

// checkMiddle compares a result with what the message has to be, the payload padded (RFC 4506 section 4.10).
func checkMiddle(t *testing.T, n, v uint32, rest []byte) {
	t.Helper()
	want := append(xdr.AppendPad(bulkOf(n), int(n)), behind...)
	if v != n || !bytes.Equal(rest, want) {
		t.Fatalf("%d bytes of payload: said to be %d, %d bytes follow and not %d, equal up to %d", n, v, len(rest), len(want), equalUpTo(rest, want))
	}
}

func equalUpTo(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestResultsBehindThePayloadFollowItAndItsPaddingInAStream(t *testing.T) {
	for name, o := range map[string]Options{"lent": {}, "read": {NoLoan: true}, "by workers": {NoInline: true}} {
		t.Run(name, func(t *testing.T) {
			s, p, addr := serve(t, o)
			nc := dial(t, addr)
			for i, n := range append(middleSizes, 300_001, MaxPayload-1, MaxPayload) {
				write(t, nc, record(uint32(i), procMiddle, n))
				xid, v, rest, err := answer(t, nc)
				if xid != uint32(i) || err != nil {
					t.Fatal(xid, err)
				}
				checkMiddle(t, n, v, rest)
			}
			if lent := p.lent.Load(); (lent > 0) == o.NoLoan || s.stats.bytesLent.Load() > 0 == o.NoLoan {
				t.Errorf("%d results lent", lent)
			}
		})
	}
}

func TestResultsBehindThePayloadFollowItInADatagram(t *testing.T) {
	s := NewServer(Options{}, &program{})
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.ServeUDP(pc) }()
	nc, err := net.Dial("udp", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	for _, n := range middleSizes {
		write(t, nc, record(1, procMiddle, n)[oncrpc.MarkLen:])
		b := make([]byte, 64<<10)
		k, err := nc.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		r := xdr.NewReader(b[:k])
		if _, err := oncrpc.ParseReply(&r); err != nil {
			t.Fatal(err)
		}
		checkMiddle(t, n, r.Uint32(), r.Rest())
	}
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	<-done
}

func TestResultsBehindThePayloadFollowItOverAFabricInline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		for _, n := range middleSizes {
			c.send(append(c.header().Append(nil), c.msg(procMiddle, n)...))
			v, rest := c.value(c.last.rest)
			checkMiddle(t, n, v, rest)
		}
	})
}

// What is placed in a write chunk is left out of the message with its padding (RFC 8166 section 3.4.6).
func TestResultsBehindThePayloadFollowInlineWhereAWriteChunkHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		for _, n := range append(middleSizes[1:], 200_001) {
			h := c.header()
			h.AddWrite(c.bind(0, 1<<20, transport.RemoteWrite))
			c.send(append(h.Append(nil), c.msg(procMiddle, n)...))
			v, rest := c.value(c.last.rest)
			used := c.last.h.Segments(c.last.h.Writes[0])
			if v != n || !bytes.Equal(rest, behind) || used[0].Len != n || !bytes.Equal(c.bulk(0, int(n)).Bytes(), bulkOf(n)) {
				t.Fatalf("%d bytes of payload: said to be %d, %d in the chunk, %d inline", n, v, used[0].Len, len(rest))
			}
		}
	})
}

func TestResultsBehindThePayloadFollowItInAReplyChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		for _, n := range append(middleSizes, 70_001, 200_002) {
			h := c.header()
			segs := []rpcrdma.Segment{c.bind(0, 1001, transport.RemoteWrite), c.bind(1<<17, 1<<17, transport.RemoteWrite), c.bind(1<<20, 1<<18, transport.RemoteWrite)}
			h.SetReply(segs)
			c.send(append(h.Append(nil), c.msg(procMiddle, n)...))
			if c.last.h.Proc != rpcrdma.Nomsg {
				t.Fatalf("%d bytes of payload: %+v", n, c.last.h)
			}
			var b []byte
			for i, at := range []int{0, 1 << 17, 1 << 20} {
				b = append(b, c.bulk(at, int(c.last.h.Reply[i].Len)).Bytes()...)
			}
			v, rest := c.value(b)
			checkMiddle(t, n, v, rest)
		}
	})
}
