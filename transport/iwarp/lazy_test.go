package iwarp

import (
	"bytes"
	"errors"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// Six messages at once meet six receives and memory for two: the rest wait on the wire until memory comes back, in order.
func TestReceivesGetTheirMemoryWhenMessagesCome(t *testing.T) {
	m := slab(t, 64<<10)
	free := []mem.Span{m.Cut(0, 4096), m.Cut(4096, 4096)}
	held := map[uint64]mem.Span{}
	dry := 0
	a, b := pair(t, pairOptions{source: func(token uint64) (mem.Span, bool) {
		if len(free) == 0 {
			dry++
			return mem.Span{}, false
		}
		held[token] = free[0]
		free = free[1:]
		return held[token], true
	}})
	const n = 6
	for i := range n {
		b.recv(uint64(i), mem.Span{})
	}
	var wrs []transport.WR
	for i := range n {
		s := m.Cut(8192+i*4096, 1000+i)
		fill(s.Bytes(), byte(i))
		wrs = append(wrs, transport.WR{Op: transport.OpSend, Token: uint64(i), Local: []mem.Span{s}})
	}
	a.post(wrs...)
	for i := range n {
		wc := b.ok(transport.OpRecv, uint64(i))
		s := held[uint64(i)]
		if want := m.Cut(8192+i*4096, 1000+i).Bytes(); !bytes.Equal(s.Bytes()[:wc.Len], want) {
			t.Fatalf("message %d of %d bytes is not what was sent", i, wc.Len)
		}
		free = append(free, s)
	}
	if dry == 0 {
		t.Error("memory was never short: the test shows nothing")
	}
}

// With no memory and nothing that could bring some back, waiting would be for ever.
func TestAMessageThatNobodyCanTakeEndsTheConnection(t *testing.T) {
	m := slab(t, 4096)
	a, b := pair(t, pairOptions{source: func(uint64) (mem.Span, bool) { return mem.Span{}, false }})
	b.recv(1, mem.Span{})
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{m.Cut(0, 10)}})
	if err := b.drain(); !errors.Is(err, errNoMemory) {
		t.Errorf("the connection ended with %v", err)
	}
}

func TestAReceiveWithoutMemoryNeedsASource(t *testing.T) {
	_, b := pair(t, pairOptions{})
	if _, err := b.qp.PostRecv([]transport.Recv{{Token: 1}}); !errors.Is(err, errNoBuf) {
		t.Error(err)
	}
	if b.qp.RecvMemory(func(uint64) (mem.Span, bool) { return mem.Span{}, false }) {
		t.Error("a connected queue pair took a source")
	}
}
