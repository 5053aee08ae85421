package transporttest

import (
	"errors"
	"sync"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// repost makes the end keep its receives posted: each buffer goes back when see has looked at it. see runs in the
// owner's goroutine.
func (e *end) repost(n, size int, see func(b []byte), credit func()) {
	e.Helper()
	bufs := make([]mem.Span, n)
	e.mu.Lock()
	e.on = func(c transport.WC) bool {
		if c.Op != transport.OpRecv || c.Token >= uint64(n) || c.Err != nil {
			return false
		}
		see(bufs[c.Token].Bytes()[:c.Len])
		if k, err := e.qp.PostRecv([]transport.Recv{{Token: c.Token, Buf: bufs[c.Token]}}); k != 1 && !errors.Is(err, transport.ErrClosed) {
			e.Errorf("%s: post a receive again: %v", e.name, err)
		}
		if credit != nil { // not before the receive is there: a Send completes before the peer's owner has looked at it
			credit()
		}
		return true
	}
	e.mu.Unlock()
	for i := range bufs {
		bufs[i] = e.recv(uint64(i), size)
	}
}

func sendOrder(s *scene) {
	a, b := s.connect(setup{})
	const total, batch = 300, 10
	var seen int
	// Never more on the way than receives are posted: flow control is the upper protocol's.
	credit := make(chan struct{}, caseQueue/2)
	b.repost(caseQueue/2, 4096, func(got []byte) {
		want := pattern(seen*37%4097, byte(seen))
		if string(got) != string(want) {
			s.Errorf("message %d is not what was sent %d-th: %d bytes, want %d", seen, seen, len(got), len(want))
		}
		seen++
	}, func() { credit <- struct{}{} })
	for range cap(credit) {
		credit <- struct{}{}
	}
	for i := 0; i < total; i += batch {
		var wrs []transport.WR
		mark := a.used
		for k := range batch {
			<-credit
			n := (i + k) * 37 % 4097
			wr := transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: uint64(i + k), Local: []mem.Span{a.filled(n, byte(i+k))}}
			if k%3 == 0 {
				wr.Flags |= transport.Solicited
			}
			wrs = append(wrs, wr)
		}
		a.post(wrs...)
		for k := range batch {
			if c := a.next(); c.Token != uint64(i+k) || c.Err != nil || int(c.Len) != wrs[k].Local[0].Len {
				s.Fatalf("completion %d of the sends: %+v", i+k, c)
			}
		}
		a.used = mark
	}
	b.until("all messages", func() bool { return seen == total })
}

func manyPosters(s *scene) {
	const posters, each = 8, 40
	a, b := s.connect(setup{a: transport.QPOptions{Sends: posters}})
	var next [posters]byte
	seen := 0
	credit := make(chan struct{}, posters*each)
	b.repost(caseQueue/2, 16, func(got []byte) {
		if len(got) != 2 || got[1] != next[got[0]] {
			s.Errorf("a message is out of its poster's order: % x, want number %d", got, next)
		}
		next[got[0]]++
		seen++
	}, func() { credit <- struct{}{} })
	for range caseQueue / 2 {
		credit <- struct{}{}
	}
	done := make(chan transport.WC, posters*each)
	var waits [posters]chan struct{}
	for i := range waits {
		waits[i] = make(chan struct{}, 1)
	}
	a.mu.Lock()
	a.on = func(c transport.WC) bool {
		done <- c
		waits[c.Token] <- struct{}{}
		return true
	}
	a.mu.Unlock()
	var wg sync.WaitGroup
	for p := range posters {
		buf := a.span(2)
		wg.Go(func() {
			for i := range each {
				<-credit
				copy(buf.Bytes(), []byte{byte(p), byte(i)})
				n, err := a.qp.Post([]transport.WR{{Op: transport.OpSend, Flags: transport.Signaled, Token: uint64(p), Local: []mem.Span{buf}}})
				if n != 1 || err != nil {
					s.Errorf("poster %d: %d, %v", p, n, err)
					return
				}
				<-waits[p] // the buffer is ours again
			}
		})
	}
	wg.Wait()
	b.until("all messages", func() bool { return seen == posters*each })
	for range posters * each {
		if c := <-done; c.Err != nil || c.Op != transport.OpSend {
			s.Fatalf("a send: %+v", c)
		}
	}
}

func writeThenSend(s *scene) {
	a, b := s.connect(setup{})
	buf := b.span(200_000)
	w := b.window(transport.RemoteWrite, buf)
	r := w.Remote()
	for i, n := range []int{1, 3, 4, 1000, 1448, 4096, 65535, 65536, 200_000} {
		at := (buf.Len - n) / 2
		ack := b.recv(uint64(i), 8)
		a.post(
			transport.WR{Op: transport.OpWrite, Local: []mem.Span{a.filled(n, byte(i))}, Remote: transport.Remote{STag: r.STag, Off: r.Off + uint64(at)}},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: uint64(i), Local: []mem.Span{a.filled(8, byte(i))}})
		if c := b.want(transport.OpRecv, uint64(i)); c.Len != 8 || c.Inv != 0 {
			s.Fatalf("the send: %+v", c)
		}
		b.same("the send", ack.Bytes(), pattern(8, byte(i)))
		b.same("the write before it", buf.Bytes()[at:at+n], pattern(n, byte(i)))
		a.want(transport.OpSend, uint64(i))
	}
}

func parkedOwner(s *scene) {
	a, b := s.connect(setup{})
	w := b.window(transport.RemoteWrite, b.span(4096))
	src := a.filled(4096, 1)
	// A Write brings nothing back: only its own completion can wake an owner that waits.
	for i := range uint64(300) {
		a.post(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: i, Local: []mem.Span{src}, Remote: w.Remote()})
		a.want(transport.OpWrite, i)
	}
	// And a message wakes the other side, whose owner answers.
	ping, pong := a.span(8), b.span(8)
	for i := range uint64(300) {
		b.mu.Lock()
		mark := b.used
		b.mu.Unlock()
		b.recv(i, 8)
		amark := a.used
		a.recv(i, 8)
		// One in a while is signaled, so that the places of the others come back (rule 7).
		f := transport.Signaled * transport.Flags((i%32)/31)
		a.post(transport.WR{Op: transport.OpSend, Flags: f, Token: i, Local: []mem.Span{ping}})
		b.want(transport.OpRecv, i)
		b.post(transport.WR{Op: transport.OpSend, Flags: f, Token: i, Local: []mem.Span{pong}})
		a.want(transport.OpRecv, i)
		if f != 0 {
			a.want(transport.OpSend, i)
			b.want(transport.OpSend, i)
		}
		a.used, b.used = amark, mark
	}
}

func unsignaled(s *scene) {
	a, b := s.connect(setup{a: transport.QPOptions{Sends: 8}})
	seen := 0
	b.repost(caseQueue/2, 8, func([]byte) { seen++ }, nil)
	src := a.span(8)
	for i := range uint64(40) {
		for range 7 {
			a.post(transport.WR{Op: transport.OpSend, Token: 1000, Local: []mem.Span{src}})
		}
		a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: i, Local: []mem.Span{src}})
		if c := a.next(); c.Token != i || c.Err != nil {
			s.Fatalf("round %d: completion %+v; unsignaled work must not complete", i, c)
		}
		want := int(i+1) * 8
		b.until("the messages of a round", func() bool { return seen == want })
	}
}

// unsignaledMemory overwrites what unsignaled Sends were of as soon as rule 7 allows it.
func unsignaledMemory(s *scene) {
	const size, rounds = 2048, 60
	a, b := s.connect(setup{})
	var got [][]byte
	b.repost(16, size, func(m []byte) { got = append(got, append([]byte(nil), m...)) }, nil)
	quiet, loud := a.span(size), a.span(size)
	counter, _ := a.qp.(transport.SendCounter)
	before := uint64(0) // the set-up sends, too
	if counter != nil {
		before = counter.SendsDone()
	}
	fill := func(sp mem.Span, v byte) {
		m := sp.Bytes()
		for k := range m {
			m[k] = v
		}
	}
	for i := range uint64(rounds) {
		fill(quiet, byte(2*i))
		fill(loud, byte(2*i+1))
		a.post(
			transport.WR{Op: transport.OpSend, Token: 1000, Local: []mem.Span{quiet}},
			transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: i, Local: []mem.Span{loud}})
		a.want(transport.OpSend, i)
		if counter != nil && counter.SendsDone() < before+2*i+2 {
			s.Fatalf("%d Sends are counted where %d have completed", counter.SendsDone(), 2*i+2)
		}
		fill(quiet, 0xee)
		fill(loud, 0xee)
		b.until("the messages of a round", func() bool { return len(got) == int(2*i+2) })
	}
	for k, m := range got {
		if len(m) != size || m[0] != byte(k) || m[size-1] != byte(k) {
			s.Fatalf("message %d holds what its memory was used for later", k)
		}
	}
}

func zeroLength(s *scene) {
	a, b := s.connect(setup{})
	b.recv(1, 64)
	b.recv(2, 0)
	a.post(
		transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1},
		transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 2, Local: []mem.Span{a.span(0)}})
	for i := range uint64(2) {
		if c := b.want(transport.OpRecv, i+1); c.Len != 0 {
			s.Fatalf("an empty send: %+v", c)
		}
		a.want(transport.OpSend, i+1)
	}
	// Nothing is placed, so no STag is looked at (RFC 5041 section 5.1; RFC 6581 builds on it).
	remote := transport.Remote{STag: 1}
	a.post(
		transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 3, Remote: remote},
		transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 4, Local: []mem.Span{a.span(0)}, Remote: remote})
	a.want(transport.OpWrite, 3)
	if c := a.want(transport.OpRead, 4); c.Len != 0 {
		s.Fatalf("an empty read: %+v", c)
	}
	b.recv(5, 64)
	a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.span(5)}})
	if c := b.want(transport.OpRecv, 5); c.Len != 5 {
		s.Fatalf("the send after them: %+v", c)
	}
}

// pieces cuts memory of n bytes into k spans that do not touch one another.
func (e *end) pieces(n, k int) []mem.Span {
	var spans []mem.Span
	for left := n; left > 0; {
		piece := min(left, n/k+1)
		spans = append(spans, e.span(piece))
		left -= piece
	}
	return spans
}

func bytesOf(spans []mem.Span) []byte {
	b := make([]byte, mem.Total(spans))
	mem.Gather(b, spans, 0)
	return b
}

func megabyte(s *scene) {
	const n = 1 << 20
	a, b := s.connect(setup{})
	k := min(3, s.caps.MaxSGE)
	src := a.pieces(n, k)
	for i, sp := range src {
		fill(sp.Bytes(), byte(i+1))
	}
	want := bytesOf(src)
	// Send.
	dst := b.recv(1, n)
	a.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1, Local: src})
	if c := b.want(transport.OpRecv, 1); c.Len != n {
		s.Fatalf("a send of %d bytes arrived as %d", n, c.Len)
	}
	a.want(transport.OpSend, 1)
	b.same("a send of 1 MiB", dst.Bytes(), want)
	// Write, into pieces.
	sink := b.pieces(n, min(k, s.caps.MaxBindSGE))
	w := b.window(transport.RemoteWrite|transport.RemoteRead, sink...)
	b.recv(2, 8)
	a.post(
		transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: 2, Local: src, Remote: w.Remote()},
		transport.WR{Op: transport.OpSend, Local: []mem.Span{a.span(8)}})
	if c := a.want(transport.OpWrite, 2); c.Len != n {
		s.Fatalf("the write: %+v", c)
	}
	b.want(transport.OpRecv, 2)
	b.same("a write of 1 MiB", bytesOf(sink), want)
	// And read it back, from pieces into one.
	back := a.span(n)
	a.post(transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: 3, Local: []mem.Span{back}, Remote: w.Remote()})
	if c := a.want(transport.OpRead, 3); c.Len != n {
		s.Fatalf("the read: %+v", c)
	}
	a.same("a read of 1 MiB", back.Bytes(), want)
}

func queueFull(s *scene) {
	a, b := s.connect(setup{a: transport.QPOptions{Sends: 4}})
	for i := range uint64(12) {
		b.recv(i, 8)
	}
	a.pause()
	src := a.span(8)
	var wrs []transport.WR
	for i := range uint64(6) {
		wrs = append(wrs, transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: i, Local: []mem.Span{src}})
	}
	if k, err := a.qp.Post(wrs); k != 4 || !errors.Is(err, transport.ErrQueueFull) {
		s.Fatalf("6 sends into a queue of 4: %d taken, %v", k, err)
	}
	a.run()
	for i := range uint64(4) {
		a.want(transport.OpSend, i)
		b.want(transport.OpRecv, i)
	}
	a.post(wrs[4:]...)
	for i := range uint64(2) {
		a.want(transport.OpSend, 4+i)
		b.want(transport.OpRecv, 4+i)
	}
}

func recvQueueFull(s *scene) {
	a, b := s.connect(setup{b: transport.QPOptions{Recvs: 4}})
	var recvs []transport.Recv
	for i := range uint64(6) {
		recvs = append(recvs, transport.Recv{Token: i, Buf: b.span(8)})
	}
	if k, err := b.qp.PostRecv(recvs); k != 4 || !errors.Is(err, transport.ErrQueueFull) {
		s.Fatalf("6 receives into a queue of 4: %d taken, %v", k, err)
	}
	for i := range uint64(4) {
		a.post(transport.WR{Op: transport.OpSend, Local: []mem.Span{a.span(8)}})
		b.want(transport.OpRecv, i)
	}
	if k, err := b.qp.PostRecv(recvs[4:]); k != 2 || err != nil {
		s.Fatalf("2 receives into an empty queue of 4: %d taken, %v", k, err)
	}
}

func fullBuffers(s *scene) {
	const n, writes = 1 << 20, 24
	a, b := s.connect(setup{})
	ends := [2]*end{a, b}
	var src, dst, back [2][]mem.Span
	var into, from [2][]transport.Remote
	for i, e := range ends {
		for k := range writes {
			src[i] = append(src[i], e.filled(n, byte(i*100+k)))
			dst[i] = append(dst[i], e.span(n))
			into[i] = append(into[i], e.window(transport.RemoteWrite, dst[i][k]).Remote())
			from[i] = append(from[i], e.window(transport.RemoteRead, src[i][k]).Remote())
		}
		for range 2 {
			back[i] = append(back[i], e.span(n))
		}
		e.recv(uint64(1000), 8)
	}
	a.pause()
	b.pause()
	// Neither side takes anything while both post far more than any socket holds, Reads in the middle.
	for i, e := range ends {
		o := 1 - i
		for k := range writes {
			e.post(transport.WR{Op: transport.OpWrite, Flags: transport.Signaled, Token: uint64(k), Local: []mem.Span{src[i][k]}, Remote: into[o][k]})
			if k%12 == 5 {
				e.post(transport.WR{Op: transport.OpRead, Flags: transport.Signaled, Token: uint64(100 + k/12), Local: []mem.Span{back[i][k/12]}, Remote: from[o][k]})
			}
		}
		e.post(transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: 1000, Local: []mem.Span{e.span(8)}})
	}
	a.run()
	b.run()
	for i, e := range ends {
		for k := range writes {
			e.want(transport.OpWrite, uint64(k))
		}
		for k := range back[i] {
			e.want(transport.OpRead, uint64(100+k))
			e.same("a read among full buffers", back[i][k].Bytes(), src[1-i][k*12+5].Bytes())
		}
		e.want(transport.OpSend, 1000)
	}
	for i, e := range ends {
		e.want(transport.OpRecv, 1000)
		for k := range writes {
			e.same("a write among full buffers", dst[i][k].Bytes(), src[1-i][k].Bytes())
		}
	}
}
