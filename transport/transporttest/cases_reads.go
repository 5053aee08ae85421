package transporttest

import (
	"errors"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

func fence(s *scene) {
	a, b := s.connect(setup{})
	for i := range byte(20) {
		mark, bmark := a.used, b.used
		n := 1 + int(i)*20_000
		from, to := b.filled(n, i), b.span(n)
		src := b.window(transport.RemoteRead, from)
		dst := b.window(transport.RemoteWrite, to)
		through := a.span(n)
		b.recv(3, 8)
		// The Write sends what the Read brings: without the fence it would send what was there before.
		a.post(
			transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 1, Local: []mem.Span{through}, Remote: src.Remote()},
			transport.WR{Op: transport.OpWrite, Flags: transport.Signaled | transport.Fence, Token: 2, Local: []mem.Span{through}, Remote: dst.Remote()},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 3, Local: []mem.Span{a.span(8)}})
		for tok := uint64(1); tok <= 3; tok++ {
			if c := a.next(); c.Token != tok || c.Err != nil {
				s.Fatalf("completion %d of read, fenced write, send: %+v", tok, c)
			}
		}
		b.want(transport.OpRecv, 3)
		b.same("what went round", to.Bytes(), from.Bytes())
		a.used, b.used = mark, bmark
		clear(through.Bytes())
		clear(to.Bytes())
	}
}

func readsInDepth(s *scene) {
	a, b := s.connect(setup{})
	depth := a.qp.Depth().Out
	const n = 60_000
	src := b.filled(n, 5)
	w := b.window(transport.RemoteRead, src)
	b.pause() // nothing can be answered: all that are posted stay outstanding
	var wrs []transport.WR
	for i := range depth + 1 {
		size := n >> (i % 5)
		wrs = append(wrs, transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: uint64(i), Local: []mem.Span{a.span(size)}, Remote: w.Remote()})
	}
	a.pause() // an adapter answers by itself, and the place of a Read is free when its completion is taken
	if k, err := a.qp.Post(wrs); k != depth || !errors.Is(err, transport.ErrTooManyReads) {
		s.Fatalf("%d Reads at depth %d: %d taken, %v", depth+1, depth, k, err)
	}
	a.run()
	b.run()
	for i := range depth {
		c := a.next()
		if c.Op != transport.OpRead || c.Token != uint64(i) || c.Err != nil || int(c.Len) != wrs[i].Local[0].Len {
			s.Fatalf("read %d: %+v", i, c)
		}
		a.same("a read", wrs[i].Local[0].Bytes(), src.Bytes()[:wrs[i].Local[0].Len])
	}
	// The one refused was not taken, and its place is free now.
	a.post(wrs[depth])
	a.want(transport.OpRead, uint64(depth))
	// Other work does not wait for Reads.
	b.pause()
	a.post(
		transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.span(n)}, Remote: w.Remote()},
		transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 2})
	if !s.caps.OwnResponder {
		a.want(transport.OpWrite, 2)
	}
	b.run()
	a.want(transport.OpRead, 1)
	if s.caps.OwnResponder {
		a.want(transport.OpWrite, 2)
	}
}

// delayedRead lets the peer answer a Read late, with a queue full of Sends behind it. Twins can hold a Read back while they take
// what comes; elsewhere the peer's owner stops, which holds nothing back where the adapter answers by itself.
func delayedRead(s *scene) {
	const sends = 15
	a, b := s.connect(setup{a: transport.QPOptions{Sends: sends + 1}})
	src := b.filled(5000, 3)
	w := b.window(transport.RemoteRead, src)
	held, can := b.qp.(interface{ HoldReads(bool) })
	for round := range 3 {
		sink := a.span(5000)
		for i := range uint64(sends) {
			b.recv(i, 8)
		}
		if can {
			held.HoldReads(true)
		} else {
			b.pause()
		}
		wrs := []transport.WR{{Op: transport.OpRead, Flags: transport.Signaled, Token: 100, Local: []mem.Span{sink}, Remote: w.Remote()}}
		for i := range uint64(sends) {
			wrs = append(wrs, transport.WR{Op: transport.OpSend, Flags: transport.Signaled * transport.Flags(i&1), Token: i, Local: []mem.Span{a.filled(8, byte(i))}})
		}
		wrs[sends].Flags |= transport.Signaled
		a.post(wrs...)
		if can {
			// The replies leave while the Read waits.
			for i := range uint64(sends) {
				b.want(transport.OpRecv, i)
			}
			if s.caps.InOrder {
				a.mu.Lock()
				n := len(a.got)
				a.mu.Unlock()
				if n > 0 {
					s.Fatalf("round %d: %d completions have overtaken a Read that is not answered", round, n)
				}
			}
		}
		read := false // its completion has come
		ordered := func() {
			for i := uint64(1); i < sends; i++ {
				if i&1 != 1 && i != sends-1 {
					continue
				}
				c := a.next()
				if c.Op == transport.OpRead && s.caps.OwnResponder && !s.caps.InOrder && !read { // among the Sends', where it likes
					read, c = true, a.next()
				}
				if c.Op != transport.OpSend || c.Token != i || c.Err != nil {
					s.Fatalf("round %d: completion %+v, want that of send %d", round, c, i)
				}
			}
		}
		if !s.caps.InOrder {
			ordered()
		}
		if can {
			held.HoldReads(false)
		} else {
			b.run()
		}
		if s.caps.InOrder {
			if c := a.next(); c.Op != transport.OpRead || c.Err != nil {
				s.Fatalf("round %d: completion %+v, want the Read's", round, c)
			}
			ordered()
		} else if !read {
			a.want(transport.OpRead, 100)
		}
		if !can {
			for i := range uint64(sends) {
				b.want(transport.OpRecv, i)
			}
		}
		a.same("the delayed Read", sink.Bytes(), src.Bytes())
	}
}

// unregister takes memory from the device when all work with it is over, and the connection goes on.
func unregister(s *scene) {
	a, b := s.connect(setup{})
	for i := range uint64(3) {
		var own [2]*mem.Slab
		for k, e := range []*end{a, b} {
			own[k] = s.slab(1 << 20)
			if err := e.dev.Register(own[k]); err != nil {
				s.Fatal(err)
			}
		}
		to := mem.Span{Slab: own[1], Len: 8}
		if n, err := b.qp.PostRecv([]transport.Recv{{Token: i, Buf: to}}); n != 1 || err != nil {
			s.Fatal(err)
		}
		w := b.window(transport.RemoteWrite, mem.Span{Slab: own[1], Off: 4096, Len: 4096})
		from := mem.Span{Slab: own[0], Off: 100, Len: 4096}
		fill(from.Bytes(), byte(i))
		a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{from}, Remote: w.Remote()},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: i, Local: []mem.Span{from.Cut(0, 8)}})
		b.want(transport.OpRecv, i)
		a.want(transport.OpSend, i)
		b.same("a write into memory registered late", own[1].Bytes()[4096:8192], from.Bytes())
		b.invalidate(w)
		for k, e := range []*end{a, b} {
			if err := e.dev.Unregister(own[k]); err != nil {
				s.Fatalf("%s: unregister: %v", e.name, err)
			}
		}
	}
	// The rest of the memory is none the worse.
	b.recv(1, 64)
	a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.filled(64, 1)}})
	b.want(transport.OpRecv, 1)
	a.want(transport.OpSend, 1)
	if g := a.dev.Gauges(); g.Connections < 1 || g.Sends != 0 {
		s.Fatalf("gauges of a connection that is idle: %+v", g)
	}
}
