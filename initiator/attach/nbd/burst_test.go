package nbd

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/test/lib/race"
)

// Requests of all lengths that come together, cut anywhere, are each answered once, and each payload is at its place.
func TestABurstOfRequests(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 0))
		v := newRAM(t, 32<<20)
		c := serve(t, v, Options{})()
		hello(t, c)
		var out bytes.Buffer
		want := map[uint64][]byte{} // of reads, by cookie
		model := make([]byte, 32<<20)
		for i := range model[:16<<20] {
			model[i] = byte(i >> 9)
		}
		v.mu.Lock()
		copy(v.b, model)
		v.mu.Unlock()
		const n = 200
		at := 16 << 20 // writes are above, each at a place of its own, and reads below
		for cookie := range uint64(n) {
			k := 512 * (1 + r.IntN(16))
			if r.IntN(4) == 0 {
				k = 512 * (1 + r.IntN(300))
			}
			off, cmd, data := r.IntN(16<<11-k>>9)<<9, uint16(cmdRead), []byte(nil)
			if r.IntN(2) == 0 && at+k <= len(model) {
				off, cmd, data = at, cmdWrite, bytes.Repeat([]byte{byte(cookie + 1)}, k)
				at += k
				copy(model[off:], data)
			} else {
				want[cookie] = model[off : off+k]
			}
			h := be.AppendUint32(nil, magicRequest)
			h = be.AppendUint16(h, 0)
			h = be.AppendUint16(h, cmd)
			h = be.AppendUint64(h, cookie)
			h = be.AppendUint64(h, uint64(off))
			out.Write(append(be.AppendUint32(h, uint32(k)), data...))
		}
		sent := make(chan error, 1)
		go func() {
			for out.Len() > 0 {
				if _, err := c.Write(out.Next(1 + r.IntN(1<<(1+r.IntN(18))))); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		answered := map[uint64]bool{}
		for range n {
			kind, cookie, data := answer(t, c)
			if answered[cookie] {
				t.Fatalf("seed %d: request %d is answered twice", seed, cookie)
			}
			answered[cookie] = true
			w, isRead := want[cookie]
			if isRead && (kind != chunkOffsetData || !bytes.Equal(data[8:], w)) || !isRead && kind != chunkNone {
				t.Fatalf("seed %d: request %d is answered by chunk %d of %d bytes", seed, cookie, kind, len(data))
			}
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		v.mu.Lock()
		if !bytes.Equal(v.b, model) {
			t.Errorf("seed %d: the volume is not what was written", seed)
		}
		v.mu.Unlock()
	}
}

// A client that asks for more than its socket holds before it reads gets all of it.
func TestAClientThatReadsLate(t *testing.T) {
	v := newRAM(t, 4<<20)
	v.mu.Lock()
	for i := range v.b {
		v.b[i] = byte(i >> 12)
	}
	want := bytes.Clone(v.b)
	v.mu.Unlock()
	c := serve(t, v, Options{})()
	hello(t, c)
	const n = 3 * slots
	for i := range uint64(n) {
		size := uint32(1 << 20)
		if i%3 == 0 {
			size = 4096
		}
		request(t, c, cmdRead, 0, i, i%3<<20, size, nil)
	}
	for range n {
		kind, cookie, data := answer(t, c)
		if from := cookie % 3 << 20; kind != chunkOffsetData || !bytes.Equal(data[8:], want[from:from+uint64(len(data)-8)]) {
			t.Fatalf("request %d: chunk %d of %d bytes", cookie, kind, len(data))
		}
	}
}

// prompt answers at once and moves nothing.
type prompt struct{ *ram }

func (p prompt) SubmitAll(qs []*blockdev.Request) {
	for _, q := range qs {
		after := q.After
		q.Done(q)
		after.Flush()
	}
}

// A request costs no allocation.
func TestRequestsAllocateNothing(t *testing.T) {
	ours, theirs := socketPair(t)
	s := New(prompt{newRAM(t, 1<<20)}, Options{})
	done := s.Attach(theirs)
	if err := ours.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []uint16{cmdRead, cmdWrite} {
		var m0, m1 runtime.MemStats
		const warm, n = 200, 5000
		ask, got := make([]byte, 0, 8192), make([]byte, simpleLen+4096)
		for i := range warm + n {
			if i == warm {
				runtime.ReadMemStats(&m0)
			}
			exchange(t, ours, cmd, ask, got)
		}
		runtime.ReadMemStats(&m1)
		if per := float64(m1.Mallocs-m0.Mallocs) / n; per > 0.05 && !race.Enabled { // the race detector allocates
			t.Errorf("request %d: %.2f allocations each", cmd, per)
		}
	}
	ours.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// exchange is one request of 4 KiB and its simple reply.
func exchange(t *testing.T, c net.Conn, cmd uint16, ask, got []byte) {
	ask = be.AppendUint32(ask, magicRequest)
	ask = be.AppendUint16(ask, 0)
	ask = be.AppendUint16(ask, cmd)
	ask = be.AppendUint64(ask, 7)
	ask = be.AppendUint64(ask, 4096)
	ask = be.AppendUint32(ask, 4096)
	if cmd == cmdWrite {
		ask, got = ask[:len(ask)+4096], got[:simpleLen]
	}
	if _, err := c.Write(ask); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, got); err != nil || be.Uint32(got) != magicSimple || be.Uint32(got[4:]) != 0 {
		t.Fatalf("%v: reply begins with % x", err, got[:simpleLen])
	}
}
