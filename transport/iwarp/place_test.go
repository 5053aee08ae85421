package iwarp

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// However a peer cuts messages into FPDUs, mixes them, and TCP cuts the stream: every byte lands where it belongs and
// nothing else changes once the message is complete.
func TestPlacementOfAnyCut(t *testing.T) {
	const half = 64 << 10
	m := slab(t, 4*half)
	src := make([]byte, half)
	fill(src, 77)
	empty := make([]byte, m.Len)
	fill(empty, 1)
	var frames batchOnce
	rapid.Check(t, func(rt *rapid.T) {
		n := negotiated{crc: rapid.Bool().Draw(rt, "crc"), big: true, depth: transport.Depth{In: 1, Out: 1}}
		o := Options{
			CopyThreshold: rapid.SampledFrom([]int{1, 2000, 1 << 20}).Draw(rt, "threshold"),
			NoBatch:       rapid.IntRange(0, 5).Draw(rt, "no batch") == 0,
			NoZeroCopy:    rapid.IntRange(0, 5).Draw(rt, "no zero copy") == 0,
		}
		e, peer := socketQP(t, o, n)
		defer func() { _ = e.dev.Close() }()
		defer func() { _ = peer.Close() }()
		copy(m.Bytes(), empty)
		model := bytes.Clone(empty)
		// A window of 64 KiB in four pieces, a Read into the next 64 KiB, receives of 4 KiB behind them.
		w := e.window()
		cuts := []int{0, 10000, 10001, 40000, half}
		var pieces []mem.Span
		for i := range 4 {
			pieces = append(pieces, m.Cut(cuts[i], cuts[i+1]-cuts[i]))
		}
		e.post(transport.WR{Op: transport.OpBind, Window: w, Local: pieces, Access: transport.RemoteWrite},
			transport.WR{Op: transport.OpRead, Token: 99, Flags: transport.Signaled, Local: []mem.Span{m.Cut(half, half)}, Remote: transport.Remote{STag: 3}})
		sink := *e.qp.stags.reads.At(0)

		var stream []byte
		put := func(h, p []byte) { stream = append(stream, frames.fpdu(n.crc, h, p)...) }
		size := rapid.SampledFrom([]int{1, 13, 500, 1428, 1432, 9000})
		recvs, read := 0, 0
		msgs := rapid.IntRange(1, 6).Draw(rt, "messages")
		for range msgs {
			switch rapid.SampledFrom([]string{"write", "write", "read", "send"}).Draw(rt, "kind") {
			case "write":
				to := rapid.IntRange(0, half-1).Draw(rt, "to")
				len := rapid.IntRange(0, min(half-to, 30000)).Draw(rt, "len")
				full := size.Draw(rt, "segment")
				from := rapid.IntRange(0, half-len).Draw(rt, "from")
				copy(model[to:], src[from:from+len])
				for first := true; first || len > 0; first = false {
					k := min(full, len)
					if rapid.IntRange(0, 20).Draw(rt, "odd") == 0 {
						k = min(len, k/2+1)
					}
					ctrl := uint16(opWrite)
					if k == len {
						ctrl |= ctrlLast
					}
					put(tagged(k, ctrl, w.Remote().STag, w.Remote().Off+uint64(to)), src[from:from+k])
					to, from, len = to+k, from+k, len-k
				}
			case "read": // a piece of the one response, whose last segment ends it
				full := size.Draw(rt, "segment")
				for i := rapid.IntRange(1, 10).Draw(rt, "segments"); i > 0 && read+full < half; i-- {
					copy(model[half+read:], src[read:read+full])
					put(tagged(full, opReadResp, sink.stag, sink.base+uint64(read)), src[read:read+full])
					read += full
				}
			case "send":
				len := rapid.IntRange(0, 4096).Draw(rt, "len")
				at := 2*half + 4096*recvs
				e.recv(uint64(recvs), m.Cut(at, 4096))
				copy(model[at:], src[:len])
				full := size.Draw(rt, "segment")
				recvs++
				for off, first := 0, true; first || off < len; first = false {
					k := min(full, len-off)
					ctrl := uint16(opSend)
					if off+k == len {
						ctrl |= ctrlLast
					}
					put(untagged(k, ctrl, 0, 0, uint32(recvs), uint32(off)), src[off:off+k])
					off += k
				}
			}
		}
		copy(model[half+read:2*half], src[read:])
		for read < half {
			k := min(1428, half-read)
			ctrl := uint16(opReadResp)
			if read+k == half {
				ctrl |= ctrlLast
			}
			put(tagged(k, ctrl, sink.stag, sink.base+uint64(read)), src[read:read+k])
			read += k
		}
		for len(stream) > 0 {
			k := rapid.SampledFrom([]int{1, 15, 17, 100, 1448, 5000, 20000, 60000}).Draw(rt, "chunk")
			k = min(k, len(stream))
			if _, err := peer.Write(stream[:k]); err != nil {
				rt.Fatal(err)
			}
			stream = stream[k:]
			for {
				c, err := e.qp.Poll(e.wc[:])
				if err != nil {
					rt.Fatal(err)
				}
				if e.got = append(e.got, e.wc[:c]...); c == 0 && e.qp.rx.socket == drained {
					break
				}
			}
		}
		if len(e.got) != recvs+1 || e.got[len(e.got)-1].Token != 99 {
			rt.Fatalf("completions %+v, want %d receives and the Read", e.got, recvs)
		}
		if !bytes.Equal(m.Bytes(), model) {
			rt.Fatal("a Write differs, or something else was touched")
		}
	})
}
