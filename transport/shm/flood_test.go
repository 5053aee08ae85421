package shm

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// A record is understood however many messages lie before the one of the slab that it names: a side that takes many slabs back, and shows
// others, breaks no rule.
func TestASlabBehindManyMessagesIsFound(t *testing.T) {
	l, e := lie(t, Options{}, transport.QPOptions{})
	m := e.slab(4096)
	e.recv(1, m.Cut(0, 64))
	fd := file(t, 4096, mem.Seals)
	const many = 2 * maxControl
	for i := range uint32(many) {
		l.send(l.slabMsg(i, 4096), fd)
	}
	l.slip(raw(record{op: opSend, size: 8, pieces: []piece{{slab: many - 1, n: 8}}}))
	e.step()
	if len(e.got) == 0 {
		t.Fatal("the record was not taken")
	}
	e.ok(transport.OpRecv, 1)
}

// Peers together share no more slabs than this process can map. The one that shares one more is ended, and the others go on; what a connection
// had is there for others when it is gone.
func TestPeersTogetherShareNoMoreThanCanBeMapped(t *testing.T) {
	was := mappings.Load()
	o := Options{maps: was + 8}
	first, a := lie(t, o, transport.QPOptions{})
	second, b := lie(t, o, transport.QPOptions{})
	fd := file(t, 4096, mem.Seals)
	for i := range uint32(5) {
		first.send(first.slabMsg(i, 4096), fd)
	}
	a.until(func() bool { return shownTo(a) == 5 })
	for i := range uint32(4) {
		second.send(second.slabMsg(i, 4096), fd)
	}
	if err := b.drain(); !errors.Is(err, stream) || !strings.Contains(err.Error(), "the most that are mapped") {
		t.Errorf("ended with %v", err)
	}
	if n := mappings.Load() - was; n != 5 {
		t.Errorf("%d mappings count, and the connection that is left has 5", n)
	}
	first.send((&control{kind: msgWithdraw, slab: 2}).append(nil))
	for i := range uint32(3) {
		first.send(first.slabMsg(10+i, 4096), fd)
	}
	a.until(func() bool { return shownTo(a) == 7 })
	if err := a.qp.Close(transport.Reason{}); err != nil {
		t.Fatal(err)
	}
	_ = a.drain() // the end that was asked for
	if n := mappings.Load(); n != was {
		t.Errorf("%d mappings count when all connections are gone, %d did before", n, was)
	}
}
