package transporttest

import (
	"errors"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// slimMemory uses memory that was known before the connection, that came after it, and after Widen.
func slimMemory(s *scene) {
	var slabs [3]*mem.Slab
	for k := range slabs {
		slab, err := s.caps.Memory.NewSlab(64 << 10)
		if err != nil {
			s.Fatal(err)
		}
		slabs[k] = slab
		s.Cleanup(func() { // after the queue pairs have ended
			if err := errors.Join(s.pair.Listener.Unregister(slab), slab.Close()); err != nil {
				s.Error(err)
			}
		})
	}
	register := func(slab *mem.Slab) {
		if err := s.pair.Listener.Register(slab); err != nil {
			s.Fatal(err)
		}
	}
	register(slabs[0])
	a, b := s.connect(setup{b: transport.QPOptions{Slim: true}})
	register(slabs[1])
	register(slabs[2])
	for k, slab := range slabs {
		if w, ok := b.qp.(transport.Widener); ok && k == 2 {
			if err := w.Widen(); err != nil {
				s.Fatal(err)
			}
		}
		b.slab, b.used = slab, 0
		token := uint64(100 + k)
		send := func(from, to *end, what mem.Span) mem.Span {
			got := to.recv(token, 4096)
			from.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: token, Local: []mem.Span{what}})
			from.want(transport.OpSend, token)
			to.want(transport.OpRecv, token)
			return got
		}
		want := a.filled(4096, byte(k))
		got := send(a, b, want)
		b.same("a message into a slab", got.Bytes(), want.Bytes())
		a.same("a message out of it", send(b, a, got).Bytes(), want.Bytes())
	}
}
