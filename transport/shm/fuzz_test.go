package shm

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// FuzzRecord decodes any bytes. What it takes is consistent, and encodes to what decodes alike.
func FuzzRecord(f *testing.F) {
	for _, r := range []record{
		{op: opSend, size: 8, inline: make([]byte, 8)},
		{op: opSendInv, size: 76, inline: make([]byte, 76), stag: 7},
		{op: opWrite, size: 4096, stag: 9, off: 1 << 40, pieces: []piece{{1, 4096, 0}}},
		{op: opWrite, size: 16 << 20, pieces: func() (p []piece) {
			for i := range uint32(maxSGE) {
				p = append(p, piece{i, 1 << 20, 4096})
			}
			return p
		}()},
		{op: opReadReq, size: 1 << 20, stag: 3},
		{op: opReadResp, size: 512, inline: make([]byte, 512)},
	} {
		f.Add(raw(r))
	}
	f.Add([]byte{}) // no slot to read a length from
	f.Fuzz(func(t *testing.T, b []byte) {
		var r record
		if r.parse(b) != nil {
			return
		}
		sum := len(r.inline)
		for _, p := range r.pieces {
			sum += int(p.n)
		}
		if r.op != opReadReq && sum != int(r.size) || r.size > maxMessage || len(r.pieces) > maxSGE {
			t.Fatalf("taken: %+v", r)
		}
		var again record
		if err := again.parse(raw(r)); err != nil || !bytes.Equal(again.inline, r.inline) || len(again.pieces) != len(r.pieces) {
			t.Fatalf("%+v became %+v: %v", r, again, err)
		}
	})
}

// FuzzHello decodes any message of the set-up.
func FuzzHello(f *testing.F) {
	for _, h := range []hello{
		{kind: msgRequest, slots: minSlots, readsIn: 4, readsOut: 4, private: []byte("private")},
		{kind: msgReply, slots: maxSlots, text: "pid:1,uid:0#1"},
		{kind: msgRefusal, text: "no\nyes"},
	} {
		f.Add(h.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again hello
		if h.parse(b) != nil {
			return
		}
		for _, c := range h.text {
			if c < ' ' || c == 0x7f {
				t.Fatalf("text %q", h.text)
			}
		}
		if len(h.text) <= maxDetail {
			if err := again.parse(h.append(nil)); err != nil || again.text != h.text || !bytes.Equal(again.private, h.private) {
				t.Fatalf("%+v became %+v: %v", h, again, err)
			}
		}
	})
}

// FuzzPeer gives a connection a peer whose ring, numbers and messages are any bytes. Nothing but the window and the receives changes, and
// the connection ends with all that it owes.
func FuzzPeer(f *testing.F) {
	ring := func(tail, head uint64, rs ...record) (b []byte) {
		b = binary.LittleEndian.AppendUint64(b, tail)
		b = binary.LittleEndian.AppendUint64(b, head)
		for _, r := range rs {
			b = append(b, raw(r)...)
		}
		return b
	}
	slab := (&control{kind: msgSlab, slab: 0, size: 8192}).append(nil)
	f.Add(ring(1, 0, record{op: opSend, size: 8, inline: make([]byte, 8)}), []byte(nil))
	f.Add(ring(2, 1, record{op: opSend, size: 100, pieces: []piece{{0, 100, 8}}}, record{op: opSend, size: 4000, pieces: []piece{{0, 4000, 0}}}), slab)
	f.Add(ring(2, 0, record{op: opWrite, size: 4096, stag: fuzzTag, off: fuzzBase, pieces: []piece{{0, 4000, 8}, {0, 96, 0}}}, record{op: opReadReq, size: 1024, stag: fuzzTag, off: fuzzBase}), slab)
	f.Add(ring(1, 0, record{op: opSendInv, stag: fuzzTag}), (&control{kind: msgWithdraw}).append(nil))
	f.Add(ring(1, 0, record{op: opReadResp, size: 64, inline: make([]byte, 64)}), []byte{msgBell})
	f.Add(ring(1, 0, record{op: opReadResp, size: 64, pieces: []piece{{0, 64, 8128}}}), slab)
	f.Add(ring(1<<63, 1<<63), []byte("hello"))
	f.Fuzz(fuzzPeer)
}

const (
	fuzzTag  = 0x5107
	fuzzBase = 1 << 20
)

func fuzzPeer(t *testing.T, region, message []byte) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	e := newEnd(t, Options{Spin: -1}, transport.QPOptions{Sends: 8, Recvs: 8})
	own, ownSlab, err := ownRegion(minSlots)
	if err != nil {
		t.Fatal(err)
	}
	theirs, peerSlab, err := ownRegion(minSlots)
	if err != nil {
		t.Fatal(err)
	}
	defer peerSlab.Close()
	seen, err := unix.Dup(peerSlab.FD())
	if err != nil {
		t.Fatal(err)
	}
	b, err := mapSealed(seen, uint64(regionSize(minSlots)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.dev.claim(e.qp); err != nil {
		t.Fatal(err)
	}
	l := link{file: os.NewFile(uintptr(fds[0]), "pair"), own: own, ownSlab: ownSlab, peer: b, depth: transport.Depth{In: 2, Out: 2}}
	if err := e.qp.start(&l); err != nil {
		t.Fatal(err)
	}
	payload, err := mem.Shared.NewSlab(8192)
	if err != nil {
		t.Fatal(err)
	}
	defer payload.Close()
	fill(payload.Bytes(), 9)
	m := e.slab(6 * 4096)
	fill(m.Bytes(), 1)
	e.recv(1, m.Cut(4096, 128))
	e.recv(2, m.Cut(2*4096, 4096))
	w := e.bind(m.Cut(3*4096, 4096), transport.RemoteRead|transport.RemoteWrite).(*window)
	e.qp.stags.Lock() // a number that inputs can know
	e.qp.stags.tab.Remove(w.stag)
	w.stag, w.base = fuzzTag, fuzzBase
	e.qp.stags.tab.Insert(w.stag, w)
	e.qp.stags.Unlock()
	e.post(transport.WR{Op: transport.OpRead, Token: 3, Local: []mem.Span{m.Cut(4*4096, 64)}, Remote: transport.Remote{STag: 1}},
		transport.WR{Op: transport.OpSend, Token: 4, Local: []mem.Span{m.Cut(0, 4096)}})
	if len(message) > 0 {
		var oob []byte
		if message[0] == msgSlab {
			oob = unix.UnixRights(payload.FD())
		}
		_ = unix.Sendmsg(fds[1], message, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) // too long is as good as none
	}
	if len(region) >= 16 {
		copy(theirs.slots, region[16:])
		theirs.head.Store(binary.LittleEndian.Uint64(region[8:]))
		theirs.tail.Store(binary.LittleEndian.Uint64(region))
	}
	_ = unix.Shutdown(fds[1], unix.SHUT_WR)
	if err := e.drain(); err == nil {
		t.Fatal("no end")
	}
	owed := map[uint64]int{1: 1, 2: 1, 3: 1, 4: 1}
	for _, wc := range e.got {
		if wc.Err != nil || wc.Op == transport.OpRecv {
			owed[wc.Token]--
		}
	}
	for tok, n := range owed { // Read and Send are not signaled: they come back if they failed
		if n < 0 || n != 0 && tok < 3 {
			t.Fatalf("token %d is owed %d times: %+v", tok, n, e.got)
		}
	}
	want := filled(6*4096, 1)
	for _, part := range [][2]int{{0, 4096}, {4096 + 128, 2 * 4096}, {4*4096 + 64, 6 * 4096}} {
		if !bytes.Equal(m.Bytes()[part[0]:part[1]], want[part[0]:part[1]]) {
			t.Fatalf("bytes of %v have changed", part)
		}
	}
	if g := e.dev.Gauges(); g != (transport.Gauges{}) {
		t.Fatalf("left: %+v", g)
	}
}
