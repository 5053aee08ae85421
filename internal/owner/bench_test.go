package owner

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// BenchmarkTurns is what the engine costs four messages that are performed, answered and fetched for, without a fabric.
func BenchmarkTurns(b *testing.B) {
	h := &quiet{}
	q := &stub{post: func(wrs []transport.WR) (int, error) { return len(wrs), nil }}
	h.e.Init(h, &h.mu, q)
	h.e.depth = 8
	local := []mem.Span{{Len: 8}}
	b.ReportAllocs()
	for b.Loop() {
		h.mu.Lock()
		for i := range uint64(4) {
			h.e.SendLocked(8, transport.WR{Op: transport.OpSend, Token: i, Local: local})
			h.e.ReadLocked(i, transport.Remote{}, mem.Span{})
			h.e.KeepLocked(work{'w'})
		}
		h.mu.Unlock()
		for {
			w, some := h.e.turn()
			if !some {
				break
			}
			h.Perform(w, false)
		}
		h.mu.Lock()
		for range 4 {
			h.e.ReadEndedLocked()
		}
		h.mu.Unlock()
	}
}
