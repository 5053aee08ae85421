package transporttest

import (
	"math"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// What a provider may say of each mistake. RFC 5040 section 4.8, RFC 5041 section 7.2. Where two layers can notice,
// either may speak.
var (
	writeSTag   = []*transport.TerminateError{ddp(1, 0, "", ""), ddp(1, 2, "", "")}
	writeRange  = []*transport.TerminateError{ddp(1, 1, "", ""), ddp(1, 3, "", "")}
	writeRight  = []*transport.TerminateError{rdmap(1, 2, "", ""), ddp(1, 0, "", "")}
	readSTag    = []*transport.TerminateError{rdmap(1, 0, "", ""), rdmap(1, 3, "", "")}
	readRange   = []*transport.TerminateError{rdmap(1, 1, "", ""), rdmap(1, 4, "", "")}
	readRight   = []*transport.TerminateError{rdmap(1, 2, "", "")}
	invalidSTag = []*transport.TerminateError{rdmap(2, 9, "", ""), rdmap(1, 9, "", ""), rdmap(1, 0, "", "")}
	noBuffer    = []*transport.TerminateError{ddp(2, 2, "", "")}
	tooLong     = []*transport.TerminateError{ddp(2, 5, "", "")}
)

func bindThenSend(s *scene) {
	a, b := s.connect(setup{})
	w, err := b.qp.NewWindow()
	if err != nil {
		s.Fatal(err)
	}
	for i := range 200 {
		mark, bmark := a.used, b.used
		buf, advert := b.span(512), b.span(16)
		got := a.recv(1, 16)
		b.recv(1, 8)
		// One Post binds and the next one tells: what is told must hold when the peer reads it.
		b.post(transport.WR{Op: transport.OpBind, Window: w, Access: transport.RemoteWrite, Local: []mem.Span{buf}})
		putRemote(advert.Bytes(), w.Remote())
		b.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: []mem.Span{advert}})
		a.want(transport.OpRecv, 1)
		a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(512, byte(i))}, Remote: getRemote(got.Bytes())},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.span(8)}})
		b.want(transport.OpRecv, 1)
		b.same("a write into a window just bound", buf.Bytes(), pattern(512, byte(i)))
		a.want(transport.OpSend, 1)
		b.want(transport.OpSend, 1)
		b.invalidate(w)
		a.used, b.used = mark, bmark
	}
}

func putRemote(b []byte, r transport.Remote) {
	for i := range 4 {
		b[i] = byte(r.STag >> (8 * i))
	}
	for i := range 8 {
		b[8+i] = byte(r.Off >> (8 * i))
	}
}

func getRemote(b []byte) (r transport.Remote) {
	for i := range 4 {
		r.STag |= uint32(b[i]) << (8 * i)
	}
	for i := range 8 {
		r.Off |= uint64(b[8+i]) << (8 * i)
	}
	return r
}

const invTok = 1<<60 + 2

func (e *end) invalidate(w transport.Window) {
	e.Helper()
	e.post(transport.WR{Op: transport.OpInvalidate, Flags: transport.Signaled, Token: invTok, Window: w})
	e.want(transport.OpInvalidate, invTok)
	if w.Valid() {
		e.Fatalf("%s: the window is valid after its invalidation completed", e.name)
	}
}

func sendInv(s *scene) {
	a, b := s.connect(setup{})
	w, err := b.qp.NewWindow()
	if err != nil {
		s.Fatal(err)
	}
	alive := false
	b.mu.Lock()
	b.on = func(c transport.WC) bool {
		alive = alive || c.Inv != 0 && w.Valid()
		return false
	}
	b.mu.Unlock()
	for i := range 100 {
		mark, bmark := a.used, b.used
		buf := b.span(3000)
		b.bind(w, transport.RemoteWrite, buf)
		r := w.Remote()
		b.recv(1, 64)
		a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(3000, byte(i))}, Remote: r},
			transport.WR{Op: transport.OpSendInv, Flags: transport.Signaled, Token: 2, Inv: r.STag, Local: []mem.Span{a.filled(48, 1)}})
		if c := b.want(transport.OpRecv, 1); c.Inv != r.STag || c.Len != 48 {
			s.Fatalf("the send that invalidates 0x%08x: %+v", r.STag, c)
		}
		if alive || w.Valid() {
			s.Fatal("the STag lives when the completion that ended it is seen")
		}
		b.same("the write before the send", buf.Bytes(), pattern(3000, byte(i)))
		a.want(transport.OpSendInv, 2)
		a.used, b.used = mark, bmark
	}
}

func sendInvWrong(s *scene) {
	a, b := s.connect(setup{})
	buf := b.filled(4096, 1)
	w := b.window(transport.RemoteWrite, buf)
	b.recv(1, 64)
	a.post(transport.WR{Op: transport.OpSendInv, Flags: transport.Signaled, Token: 1, Inv: w.Remote().STag ^ 0x5a5a5a5a, Local: []mem.Span{a.span(48)}})
	b.blamed(a, invalidSTag...)
	_, left := b.ended()
	for _, c := range left {
		if c.Op == transport.OpRecv && c.Err == nil {
			s.Fatalf("the send completed: %+v", c)
		}
	}
	if w.Valid() {
		s.Fatal("a window outlives its connection")
	}
}

func localInvalidate(s *scene) {
	a, b := s.connect(setup{})
	w, err := b.qp.NewWindow()
	if err != nil {
		s.Fatal(err)
	}
	if w.Valid() {
		s.Fatal("a window that was never bound is valid")
	}
	seen := make(map[uint32]bool)
	for i := range 50 {
		mark := b.used
		buf := b.span(100)
		b.bind(w, transport.RemoteWrite, buf)
		r := w.Remote()
		b.recv(1, 8)
		a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(100, byte(i))}, Remote: r},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: []mem.Span{a.span(8)}})
		b.want(transport.OpRecv, 1)
		a.want(transport.OpSend, 1)
		b.same("a write", buf.Bytes(), pattern(100, byte(i)))
		b.invalidate(w)
		if s.caps.PerIOWindows && seen[r.STag] {
			s.Fatalf("STag 0x%08x came again", r.STag)
		}
		seen[r.STag] = true
		b.used = mark
	}
}

func stagsRandom(s *scene) {
	_, b := s.connect(setup{})
	w, err := b.qp.NewWindow()
	if err != nil {
		s.Fatal(err)
	}
	buf := b.span(1 << 20)
	stags, deltas, bases := make(map[uint32]bool), make(map[uint32]bool), make(map[uint64]bool)
	var last uint32
	const lives = 256
	for range lives {
		b.bind(w, transport.RemoteWrite, buf)
		r := w.Remote()
		if r.STag == 0 {
			s.Fatal("STag 0, which LIO and knfsd read as none")
		}
		if r.Off > math.MaxUint64-uint64(buf.Len) {
			s.Fatalf("base 0x%x and length 0x%x wrap", r.Off, buf.Len)
		}
		stags[r.STag], deltas[r.STag-last], bases[r.Off] = true, true, true
		last = r.STag
		b.invalidate(w)
	}
	// 256 random numbers of 32 bits collide once in 130,000 runs; twice, never.
	if len(stags) < lives-1 || len(deltas) < lives-2 {
		s.Fatalf("%d lives had %d STags with %d distances: they can be foretold (RFC 5042 section 6.1.1)", lives, len(stags), len(deltas))
	}
	if len(bases) < 2 {
		s.Fatal("every life has the same base")
	}
}

// mistake makes b's memory a pattern with one bound window in its middle, lets do attack from a, and checks that
// nothing of it moved, that b ended the connection, and that a was told why.
func (s *scene) mistake(access transport.Access, rules []*transport.TerminateError, do func(a *end, r transport.Remote, size int) transport.WR) {
	s.Helper()
	a, b := s.connect(setup{})
	const size = 5000
	before := b.filled(9000, 1)
	buf := b.filled(size, 2)
	after := b.filled(9000, 3)
	w := b.window(access, buf)
	wr := do(a, w.Remote(), size)
	wr.Flags |= transport.Signaled
	wr.Token = 77
	sink := []byte(nil)
	if wr.Op == transport.OpRead {
		fill(wr.Local[0].Bytes(), 9)
		sink = wr.Local[0].Bytes()
	}
	a.post(wr)
	b.blamed(a, rules...)
	b.same("memory before the window", before.Bytes(), pattern(9000, 1))
	b.same("the window", buf.Bytes(), pattern(size, 2))
	b.same("memory behind the window", after.Bytes(), pattern(9000, 3))
	if sink != nil {
		a.same("the sink of a refused Read", sink, pattern(len(sink), 9))
		if _, left := a.ended(); len(left) != 1 || left[0].Err == nil || left[0].Token != 77 {
			s.Fatalf("the refused Read completed as %+v", left)
		}
	}
	if w.Valid() {
		s.Fatal("a window outlives its connection")
	}
}

// ranges are offsets from a window's base, and lengths, none of which it holds.
func ranges(size int) []struct {
	off uint64
	n   int
} {
	z := uint64(size)
	return []struct {
		off uint64
		n   int
	}{
		{z, 1}, {z - 1, 2}, {math.MaxUint64, 1}, {math.MaxUint64, 2}, {math.MaxUint64 - 99, 200}, {0, size + 1}, {1 << 32, 16}, {1 << 63, 16},
	}
}

func outside(s *scene, op transport.Op, access transport.Access, rules []*transport.TerminateError) {
	for _, x := range ranges(5000) {
		s.mistake(access, rules, func(a *end, r transport.Remote, _ int) transport.WR {
			return transport.WR{Op: op, Local: []mem.Span{a.filled(x.n, 8)}, Remote: transport.Remote{STag: r.STag, Off: r.Off + x.off}}
		})
	}
	// An offset that is no offset of the window at all, up against the end of all offsets.
	s.mistake(access, rules, func(a *end, r transport.Remote, _ int) transport.WR {
		return transport.WR{Op: op, Local: []mem.Span{a.filled(64, 8)}, Remote: transport.Remote{STag: r.STag, Off: math.MaxUint64 - 10}}
	})
}

func writeBounds(s *scene) {
	outside(s, transport.OpWrite, transport.RemoteWrite|transport.RemoteRead, writeRange)
}

func readBounds(s *scene) {
	outside(s, transport.OpRead, transport.RemoteWrite|transport.RemoteRead, readRange)
}

func writeAccess(s *scene) {
	s.mistake(transport.RemoteRead, writeRight, func(a *end, r transport.Remote, size int) transport.WR {
		return transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(size, 8)}, Remote: r}
	})
}

func readAccess(s *scene) {
	s.mistake(transport.RemoteWrite, readRight, func(a *end, r transport.Remote, size int) transport.WR {
		return transport.WR{Op: transport.OpRead, Local: []mem.Span{a.span(size)}, Remote: r}
	})
}

func guess(s *scene, op transport.Op, rules []*transport.TerminateError) {
	for _, g := range []func(uint32) uint32{
		func(t uint32) uint32 { return t + 1 },
		func(t uint32) uint32 { return t - 1 },
		func(t uint32) uint32 { return t ^ 0x80000000 },
		func(t uint32) uint32 { return t ^ 0xff },
		func(uint32) uint32 { return 0 },
		func(uint32) uint32 { return 1 },
		func(uint32) uint32 { return math.MaxUint32 },
	} {
		s.mistake(transport.RemoteRead|transport.RemoteWrite, rules, func(a *end, r transport.Remote, size int) transport.WR {
			return transport.WR{Op: op, Local: []mem.Span{a.filled(size, 8)}, Remote: transport.Remote{STag: g(r.STag), Off: r.Off}}
		})
	}
}

func writeGuess(s *scene) { guess(s, transport.OpWrite, writeSTag) }
func readGuess(s *scene)  { guess(s, transport.OpRead, readSTag) }

func stale(s *scene, op transport.Op, rules []*transport.TerminateError) {
	a, b := s.connect(setup{})
	buf := b.filled(5000, 2)
	w := b.window(transport.RemoteRead|transport.RemoteWrite, buf)
	old := w.Remote()
	b.invalidate(w)
	b.bind(w, transport.RemoteRead|transport.RemoteWrite, buf) // the same window and memory live again, under another STag
	sink := a.filled(5000, 8)
	a.post(transport.WR{Op: op, Local: []mem.Span{sink}, Remote: old})
	b.blamed(a, rules...)
	b.same("the window", buf.Bytes(), pattern(5000, 2))
	a.same("memory here", sink.Bytes(), pattern(5000, 8))
}

func writeStale(s *scene) { stale(s, transport.OpWrite, writeSTag) }
func readStale(s *scene)  { stale(s, transport.OpRead, readSTag) }

func otherQP(s *scene) {
	for _, op := range []transport.Op{transport.OpWrite, transport.OpRead} {
		rules := writeSTag
		if op == transport.OpRead {
			rules = readSTag
		}
		_, good := s.connect(setup{})
		a, b := s.connect(setup{})
		buf := good.filled(5000, 2)
		w := good.window(transport.RemoteRead|transport.RemoteWrite, buf)
		a.post(transport.WR{Op: op, Local: []mem.Span{a.filled(5000, 8)}, Remote: w.Remote()})
		b.blamed(a, rules...)
		good.same("the neighbour's window", buf.Bytes(), pattern(5000, 2))
		if !w.Valid() {
			s.Fatal("the neighbour's window died with the attacker")
		}
	}
}

func writeAfterInv(s *scene) {
	a, b := s.connect(setup{})
	buf := b.filled(5000, 2)
	w := b.window(transport.RemoteWrite, buf)
	r := w.Remote()
	b.recv(1, 64)
	a.post(
		transport.WR{Op: transport.OpSendInv, Inv: r.STag, Local: []mem.Span{a.span(48)}},
		transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(5000, 8)}, Remote: r})
	b.blamed(a, writeSTag...)
	b.same("memory of an I/O that is over", buf.Bytes(), pattern(5000, 2))
	if _, left := b.ended(); len(left) != 1 || left[0].Err != nil || left[0].Inv != r.STag {
		s.Fatalf("the send before the write must have completed: %+v", left)
	}
}

func noReceive(s *scene) {
	a, b := s.connect(setup{})
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.span(64)}})
	b.blamed(a, noBuffer...)
}

func longSend(s *scene) {
	for _, n := range []struct{ recv, send int }{{64, 65}, {4096, 100_000}, {0, 1}} {
		a, b := s.connect(setup{})
		b.recv(1, n.recv)
		guard := b.filled(n.send, 4)
		a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.span(n.send)}})
		b.blamed(a, tooLong...)
		b.same("memory behind the receive", guard.Bytes(), pattern(n.send, 4))
		if _, left := b.ended(); len(left) != 1 || left[0].Op != transport.OpRecv || left[0].Err == nil {
			s.Fatalf("the receive completed as %+v", left)
		}
	}
}
