package iwarp

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// answers is what a target sends for n reads of size bytes: a Write to the window and a Send behind it, each.
func answers(w transport.Remote, payload []byte, n, size, send int) (stream []byte) {
	var frames batchOnce
	for i := range n {
		p := payload[i*size : (i+1)*size]
		stream = append(stream, frames.fpdu(false, tagged(size, ctrlLast|opWrite, w.STag, w.Off+uint64(i*size)), p)...)
		stream = append(stream, frames.fpdu(false, untagged(send, ctrlLast|opSend, 0, 0, uint32(i+1), 0), payload[:send])...)
	}
	return stream
}

// Payload that is placed and not copied costs one system call an answer, and the owner gets as many answers at a time as where payload is
// copied.
func TestAnswersThatArePlacedComeTogether(t *testing.T) {
	const n, size, send = 14, 12 << 10, 76
	e, peer := socketQP(t, Options{}, negotiated{big: true, depth: transport.Depth{In: 1, Out: 1}})
	defer func() { _ = e.dev.Close() }()
	defer func() { _ = peer.Close() }()
	m := slab(t, n*size+n*128)
	w := e.window()
	e.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{m.Cut(0, n*size)}, Access: transport.RemoteWrite})
	for i := range n {
		e.recv(uint64(i), m.Cut(n*size+128*i, 128))
	}
	src := make([]byte, n*size)
	fill(src, 5)
	rc, err := peer.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var serr error // all of it has to be in the socket at once
	if err := rc.Control(func(fd uintptr) { serr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 2*n*size) }); err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	if _, err := peer.Write(answers(w.Remote(), src, n, size, send)); err != nil {
		t.Fatal(err)
	}
	first, err := e.qp.Poll(e.wc[:])
	if err != nil {
		t.Fatal(err)
	}
	if most := gather/size + 1; first < gather/(size+512) || first > most {
		t.Errorf("the first Poll brings %d answers of %d KiB, want about %d", first, size>>10, most-1)
	}
	got := first
	for got < n {
		k, err := e.qp.Poll(e.wc[:])
		if err != nil {
			t.Fatal(err)
		}
		got += k
	}
	if !bytes.Equal(m.Cut(0, n*size).Bytes(), src) {
		t.Error("what was written differs")
	}
	s := e.qp.Stats()
	if s.Reads > n+3 { // the first header, the first Send, and a look that finds nothing
		t.Errorf("%d system calls for %d answers", s.Reads, n)
	}
	if k := s.CopiedIn[CopyClass(n*size)]; k != 0 {
		t.Errorf("%d bytes of payload copied", k)
	}
}

// A peer that ends its stream behind a message is answered as if it had ended later: the owner sees the message first.
func TestTheEndBehindAMessageWaits(t *testing.T) {
	e, peer := socketQP(t, Options{}, negotiated{big: true, depth: transport.Depth{In: 1, Out: 1}})
	defer func() { _ = e.dev.Close() }()
	const size, send = 64 << 10, 76
	m := slab(t, size+128)
	w := e.window()
	e.post(transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{m.Cut(0, size)}, Access: transport.RemoteWrite})
	e.recv(7, m.Cut(size, 128))
	src := make([]byte, 4096)
	fill(src, 9)
	if _, err := peer.Write(answers(w.Remote(), src, 1, 4096, send)); err != nil {
		t.Fatal(err)
	}
	if err := peer.Close(); err != nil {
		t.Fatal(err)
	}
	e.ok(transport.OpRecv, 7)
	if p := e.qp.life.is(); p != established {
		t.Fatalf("the connection is %v before the owner has handled the message", p)
	}
	if err := e.drain(); !errors.Is(err, transport.ErrClosed) {
		t.Fatal(err)
	}
}
