package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// socketQP is a connected QP on one end of a socket pair, and the other end.
func socketQP(t testing.TB, o Options, n negotiated) (*end, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := New(o)
	q, err := newQP(d, transport.QPOptions{Sends: 16, Recvs: 16})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.claim(q); err != nil {
		t.Fatal(err)
	}
	if err := q.start(os.NewFile(uintptr(fds[0]), "engine"), n); err != nil {
		t.Fatal(err)
	}
	return &end{t: t, dev: d, qp: q}, os.NewFile(uintptr(fds[1]), "peer")
}

// Stand-ins in fuzzed frames for what the provider chooses at random.
const (
	fuzzWrite = 0xaaaaaaaa // STag of the window to write
	fuzzRead  = 0xbbbbbbbb // STag of the window to read
	fuzzSink  = 0xcccccccc // sink STag of the outstanding Read
)

// completeFrames puts the real STags, bases and CRCs into the FPDUs of a fuzzed stream.
func completeFrames(in []byte, wr, rd, sink transport.Remote, crc bool) []byte {
	b := bytes.Clone(in)
	tag := func(p []byte) {
		for _, x := range []struct {
			is uint32
			r  transport.Remote
		}{{fuzzWrite, wr}, {fuzzRead, rd}, {fuzzSink, sink}} {
			if binary.BigEndian.Uint32(p) == x.is {
				binary.BigEndian.PutUint32(p, x.r.STag)
				if len(p) >= 12 {
					binary.BigEndian.PutUint64(p[4:], binary.BigEndian.Uint64(p[4:])+x.r.Off)
				}
				return
			}
		}
	}
	for f := b; len(f) >= untaggedLen; {
		n := fpduLen(int(binary.BigEndian.Uint16(f)))
		if n > len(f) {
			break
		}
		switch h := headerLen(f); {
		case h == taggedLen:
			tag(f[4:16])
		case n >= untaggedLen+readReqLen+crcLen && f[3]&15 == opReadReq:
			tag(f[untaggedLen+16 : untaggedLen+28])
		default:
			tag(f[4:8])
		}
		if crc {
			binary.LittleEndian.PutUint32(f[n-crcLen:], crcAdd(0, f[:n-crcLen]))
		}
		f = f[n:]
	}
	return b
}

func FuzzReceive(f *testing.F) {
	add := func(frames ...[]byte) {
		for flags := range 16 {
			f.Add(bytes.Join(frames, nil), uint8(flags))
		}
	}
	pay := bytes.Repeat([]byte{0xee}, 3000)
	send := func(msn uint32, op uint16, inv uint32, n int) []byte {
		return fpdu(false, untagged(n, ctrlLast|op, inv, 0, msn, 0), pay[:n])
	}
	write := func(stag uint32, to uint64, n int) []byte {
		return fpdu(false, tagged(n, ctrlLast|opWrite, stag, to), pay[:n])
	}
	add(send(1, opSend, 0, 5), send(2, opSendSE, 0, 0), send(3, opSendInv, fuzzWrite, 60))
	add(write(fuzzWrite, 0, 3000), write(fuzzWrite, 1096, 3000), write(fuzzWrite, 4095, 2))
	add(write(fuzzRead, 0, 1), write(1, 0, 0))
	add(fpdu(false, readReqHdr(readReq{7, 8, 4096, fuzzRead, 0}, 1), nil), fpdu(false, readReqHdr(readReq{7, 8, 0, 1, 0}, 2), nil))
	add(fpdu(false, tagged(1000, opReadResp, fuzzSink, 0), pay[:1000]), fpdu(false, tagged(2000, ctrlLast|opReadResp, fuzzSink, 1000), pay[:2000]))
	add(fpdu(false, untagged(100, opSend, 0, 0, 1, 0), pay[:100]), write(fuzzWrite, 5, 100), fpdu(false, untagged(28, ctrlLast|opSend, 0, 0, 1, 100), pay[:28]))
	add(fpdu(false, untagged(4, ctrlLast|opTerminate, 0, 2, 1, 0), []byte{0x11, 0, 0, 0}))
	add(fpdu(false, untagged(2000, ctrlLast|opTerminate, 0, 2, 1, 0), pay[:2000]))
	f.Fuzz(func(t *testing.T, in []byte, flags uint8) {
		if len(in) > 32<<10 {
			return // of what fits the socket
		}
		fuzzReceive(t, in, flags)
	})
}

func fuzzReceive(t *testing.T, in []byte, flags uint8) {
	n := negotiated{crc: flags&1 != 0, big: true, responder: flags&8 != 0, depth: transport.Depth{In: 2, Out: 1}}
	o := Options{NoZeroCopy: flags&2 != 0, CopyThreshold: 1024}
	if flags&4 != 0 {
		o.CopyThreshold = 1
	}
	e, peer := socketQP(t, o, n)
	defer func() { _ = e.dev.Close() }()
	defer func() { _ = peer.Close() }()
	// A page each for: guard, window to write, guard, receive (128 bytes), guard, sink of a Read (3000), guard, window to read.
	s, err := mem.NewSlab(8 * 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	page := func(i, n int) mem.Span { return mem.Span{Slab: s, Off: i * 4096, Len: n} }
	fill(s.Bytes(), 1)
	before := bytes.Clone(s.Bytes())
	w, r := e.window(), e.window()
	e.recv(1, page(3, 128))
	e.post(
		transport.WR{Op: transport.OpBind, Window: w, Local: []mem.Span{page(1, 4096)}, Access: transport.RemoteWrite},
		transport.WR{Op: transport.OpBind, Window: r, Local: []mem.Span{page(7, 4096)}, Access: transport.RemoteRead},
		transport.WR{Op: transport.OpRead, Token: 2, Local: []mem.Span{page(5, 3000)}, Remote: transport.Remote{STag: 3}})
	sink := e.qp.stags.reads.At(0)
	b := completeFrames(in, w.Remote(), r.Remote(), transport.Remote{STag: sink.stag, Off: sink.base}, n.crc)
	// In two pieces, so that payload is split between look-ahead and memory.
	cut := len(b) / 3 * int(flags>>4) / 15
	for _, p := range [][]byte{b[:cut], b[cut:]} {
		if _, err := peer.Write(p); err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
			t.Fatal(err)
		}
		if k, err := e.qp.Poll(e.wc[:]); err == nil {
			e.got = append(e.got, e.wc[:k]...)
		}
	}
	_ = peer.Close()
	if err := e.drain(); !errors.Is(err, transport.ErrClosed) {
		t.Fatalf("the end is %v", err)
	}
	for _, p := range []mem.Span{page(0, 4096), page(2, 4096), page(3, 4096).Cut(128, 4096-128), page(4, 4096), page(5, 4096).Cut(3000, 1096), page(6, 4096), page(7, 4096)} {
		if !bytes.Equal(p.Bytes(), before[p.Off:p.Off+p.Len]) {
			t.Fatalf("bytes landed where nothing is exposed, in [%d,%d)", p.Off, p.Off+p.Len)
		}
	}
	seen := map[uint64]bool{}
	for _, wc := range e.got {
		if seen[wc.Token] || wc.Len > 3000 {
			t.Fatalf("completion %+v", wc)
		}
		seen[wc.Token] = true
	}
	if w.Valid() || r.Valid() || !seen[1] {
		t.Fatalf("windows valid %t %t, receive returned %t", w.Valid(), r.Valid(), seen[1])
	}
}
