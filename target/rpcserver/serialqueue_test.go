package rpcserver

import (
	"net"
	"testing"

	"github.com/sluice-storage/sluice/internal/oncrpc"
	"github.com/sluice-storage/sluice/internal/xdr"
)

// Calls that hardly ever block go one after another; one that does loses the others to another worker.
func TestASerialQueueThatBlocksIsLeft(t *testing.T) {
	s, p, addr := serve(t, Options{})
	p.brief.Store(true)
	nc := dial(t, addr)
	var all []byte
	const n = 5
	for i := range uint32(n) {
		all = append(all, record(i, procWait, i)...)
	}
	write(t, nc, all)
	for range n {
		<-p.entered // each has been taken from the one before
	}
	if k := s.stats.handoffs.Load(); k < n-1 {
		t.Errorf("%d handoffs for %d calls that block", k, n)
	}
	write(t, nc, record(100, procEcho, 7))
	if xid, v, _, err := answer(t, nc); xid != 100 || v != 7 || err != nil {
		t.Fatalf("behind those that wait: %d %d %v", xid, v, err)
	}
	close(p.gate)
	seen := make(map[uint32]bool)
	for range n {
		xid, v, _, err := answer(t, nc)
		if xid != v || err != nil || seen[xid] {
			t.Fatal(xid, v, err)
		}
		seen[xid] = true
	}
	// The queue is empty, and there for the next.
	write(t, nc, record(200, procWait, 200))
	if xid, v, _, err := answer(t, nc); xid != 200 || v != 200 || err != nil {
		t.Fatal(xid, v, err)
	}
}

// Whatever comes together is answered, on several connections at once.
func TestManyCallsInSerialQueues(t *testing.T) {
	_, p, addr := serve(t, Options{})
	p.brief.Store(true)
	close(p.gate)
	done := make(chan uint64, 4)
	for range cap(done) {
		nc := dial(t, addr)
		go func() {
			var sum uint64
			defer func() { done <- sum }()
			var all []byte
			const n = 100
			for i := range uint32(n) {
				all = append(all, record(i, procWait, i)...)
			}
			for range 2 {
				if _, err := nc.Write(all); err != nil {
					t.Error(err)
					return
				}
			}
			for range 2 * n {
				v, err := word(nc)
				if err != nil {
					t.Error(err)
					return
				}
				sum += uint64(v)
			}
		}()
	}
	for range cap(done) {
		if sum := <-done; sum != 2*99*100/2 {
			t.Errorf("the answers add up to %d", sum)
		}
	}
}

// word reads one reply and returns its first word.
func word(nc net.Conn) (uint32, error) {
	b, err := message(nc)
	if err != nil {
		return 0, err
	}
	r := xdr.NewReader(b)
	_, err = oncrpc.ParseReply(&r)
	return r.Uint32(), err
}
