package iwarp

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-storage/sluice/internal/fifo"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// wire is a model of TCP's transmit queue: bytes appended to the last segment chain unless MSG_EOR ended it; segments
// of mss bytes are cut from the start of each chain.
type wire struct {
	chains [][]byte
	eor    bool
}

func (w *wire) take(b []byte, eor bool) {
	if len(w.chains) == 0 || w.eor {
		w.chains = append(w.chains, nil)
	}
	c := &w.chains[len(w.chains)-1]
	*c = append(*c, b...)
	w.eor = eor
}

// unconnected is a QP that can build batches but sends nothing.
func unconnected(t testing.TB, n negotiated) *QP {
	q, err := newQP(New(Options{}), transport.QPOptions{Sends: 64, Recvs: 1})
	if err != nil {
		t.Fatal(err)
	}
	q.crc, q.depth = n.crc, n.depth
	q.stags.reads = fifo.NewFixed[readSink](n.depth.Out + 1)
	q.tx.init(n)
	q.life.moveLocked(connecting)
	q.life.moveLocked(established)
	q.tx.releaseLocked()
	return q
}

// deliver takes the FPDUs of a stream without markers apart and puts the messages together.
type deliver struct {
	t      *rapid.T
	crc    bool
	sends  [][]byte
	writes [][]byte
	reads  []readReq
	part   []byte // of the message under way
	to     uint64
}

func (d *deliver) fpdu(b []byte) {
	var h ddpHeader
	h.parse(b)
	if len(b) != fpduLen(h.ulpdu) {
		d.t.Fatalf("FPDU of %d bytes with a ULPDU of %d", len(b), h.ulpdu)
	}
	sum := uint32(0)
	if d.crc {
		sum = crcAdd(0, b[:len(b)-crcLen])
	}
	if binary.LittleEndian.Uint32(b[len(b)-crcLen:]) != sum {
		d.t.Fatalf("bad CRC")
	}
	p := b[h.len() : 2+h.ulpdu]
	switch {
	case h.op == opReadReq:
		var r readReq
		r.parse(p)
		d.reads = append(d.reads, r)
		return
	case h.tagged:
		if len(d.part) > 0 && h.to != d.to {
			d.t.Fatalf("Write continues at 0x%x, want 0x%x", h.to, d.to)
		}
		d.to = h.to + uint64(len(p))
	case int(h.mo) != len(d.part) || int(h.msn) != len(d.sends)+1:
		d.t.Fatalf("message %d offset %d, want %d and %d", h.msn, h.mo, len(d.sends)+1, len(d.part))
	}
	d.part = append(d.part, p...)
	if h.last {
		if h.tagged {
			d.writes = append(d.writes, d.part)
		} else {
			d.sends = append(d.sends, d.part)
		}
		d.part = nil
	}
}

type posted struct {
	sends, writes [][]byte
	reads         int
}

// drawWork posts random work requests.
func drawWork(t *rapid.T, q *QP, m mem.Span) (p posted) {
	size := rapid.SampledFrom([]int{0, 1, 2, 3, 4, 511, 512, 513, 1000, 1400, 1424, 1428, 1432, 3000, 20000, 70000, 200000})
	for range rapid.IntRange(1, 12).Draw(t, "requests") {
		n := size.Draw(t, "bytes")
		var spans []mem.Span
		for left := n; left > 0; {
			k := min(left, rapid.IntRange(n/maxSGE+1, n).Draw(t, "piece"))
			spans = append(spans, m.Cut(rapid.IntRange(0, m.Len-k).Draw(t, "at"), k))
			left -= k
		}
		var flat []byte
		for _, s := range spans {
			flat = append(flat, s.Bytes()...)
		}
		wr := transport.WR{Local: spans, Remote: transport.Remote{STag: 77, Off: rapid.Uint64Range(0, 1<<40).Draw(t, "to")}}
		switch wr.Op = rapid.SampledFrom([]transport.Op{transport.OpSend, transport.OpSendInv, transport.OpWrite, transport.OpRead}).Draw(t, "op"); wr.Op {
		case transport.OpWrite:
			p.writes = append(p.writes, flat)
		case transport.OpRead:
			wr.Local = nil
			p.reads++
		default:
			p.sends = append(p.sends, flat)
		}
		if err := q.postLocked(&wr); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p posted) check(t *rapid.T, d *deliver) {
	for _, x := range []struct {
		name      string
		got, want [][]byte
	}{{"Sends", d.sends, p.sends}, {"Writes", d.writes, p.writes}} {
		if len(x.got) != len(x.want) {
			t.Fatalf("%d %s arrived of %d", len(x.got), x.name, len(x.want))
		}
		for i := range x.want {
			if !bytes.Equal(x.got[i], x.want[i]) {
				t.Fatalf("%s: message %d of %d bytes differs", x.name, i, len(x.want[i]))
			}
		}
	}
	if len(d.reads) != p.reads || len(d.part) > 0 {
		t.Fatalf("%d Read Requests of %d, %d bytes of an unfinished message", len(d.reads), p.reads, len(d.part))
	}
}

// flat is the content of iovecs, for the model.
func (b *batch) flat(eor bool) []byte {
	iov, want := b.plan(eor)
	var out []byte
	for _, v := range iov {
		out = append(out, bytesOf(v)...)
	}
	if len(out) != want {
		panic("plan and iovecs disagree")
	}
	return out
}

func TestSegmentsHoldWholeFPDUs(t *testing.T) {
	m := slab(t, 256<<10)
	fill(m.Bytes(), 3)
	rapid.Check(t, func(rt *rapid.T) {
		mss := rapid.SampledFrom([]int{536, 1448, 1460, 1459, 1441, 8948}).Draw(rt, "mss")
		crc := rapid.Bool().Draw(rt, "crc")
		aligned := rapid.Bool().Draw(rt, "socket takes whole segments")
		q := unconnected(t, negotiated{crc: crc, mss: mss, depth: transport.Depth{Out: 64}})
		p := drawWork(rt, q, m)
		w := &wire{}
		skewed := map[int]bool{} // chains in which a system call ended inside of an FPDU
		o := &q.tx.out
		for {
			if !o.left() {
				o.reset()
				q.tx.buildLocked()
				if !o.left() {
					break
				}
				for i, e := range o.ends[:len(o.ends)-1] {
					if e != (i+1)*mss {
						rt.Fatalf("an FPDU of a batch that is not the last ends at %d, not at a segment's end", e)
					}
				}
			}
			b := o.flat(true)
			n := len(b)
			if rapid.IntRange(0, 3).Draw(rt, "full socket") == 0 {
				if n = rapid.IntRange(1, n).Draw(rt, "taken"); aligned && n < len(b) {
					n = max(n/mss*mss, min(mss, len(b)))
				}
			}
			w.take(b[:n], n == len(b))
			o.advance(n)
			if n < len(b) && o.fpduEnd() != o.off {
				skewed[len(w.chains)-1] = true
			}
		}
		d := &deliver{t: rt, crc: crc}
		for i, c := range w.chains {
			if aligned && skewed[i] {
				rt.Fatalf("a socket that takes whole segments left a part of an FPDU")
			}
			for len(c) > 0 {
				seg := c[:min(mss, len(c))]
				c = c[len(seg):]
				n := fpduLen(int(binary.BigEndian.Uint16(seg)))
				if n != len(seg) {
					rt.Fatalf("a segment of %d bytes begins with an FPDU of %d", len(seg), n)
				}
				d.fpdu(seg)
			}
		}
		p.check(rt, d)
	})
}

func TestBigFPDUsCarryTheSame(t *testing.T) {
	m := slab(t, 256<<10)
	fill(m.Bytes(), 3)
	rapid.Check(t, func(rt *rapid.T) {
		crc := rapid.Bool().Draw(rt, "crc")
		q := unconnected(t, negotiated{crc: crc, big: true, mss: 1448, depth: transport.Depth{Out: 64}})
		p := drawWork(rt, q, m)
		var stream []byte
		o := &q.tx.out
		for {
			if !o.left() {
				o.reset()
				if q.tx.buildLocked(); !o.left() {
					break
				}
			}
			b := o.flat(false)
			n := rapid.IntRange(1, len(b)).Draw(rt, "taken")
			stream = append(stream, b[:n]...)
			o.advance(n)
		}
		d := &deliver{t: rt, crc: crc}
		for len(stream) > 0 {
			n := fpduLen(int(binary.BigEndian.Uint16(stream)))
			d.fpdu(stream[:n])
			stream = stream[n:]
		}
		p.check(rt, d)
	})
}

func TestMarkersStandWhereTheyBelong(t *testing.T) {
	m := slab(t, 256<<10)
	fill(m.Bytes(), 3)
	rapid.Check(t, func(rt *rapid.T) {
		crc, big := rapid.Bool().Draw(rt, "crc"), rapid.Bool().Draw(rt, "big")
		q := unconnected(t, negotiated{crc: crc, big: big, mss: 1448, markers: true, depth: transport.Depth{Out: 64}})
		p := drawWork(rt, q, m)
		var stream []byte
		o := &q.tx.out
		for o.reset(); ; o.reset() {
			if q.tx.buildLocked(); !o.left() {
				break
			}
			prev := 0
			for _, e := range o.ends {
				if !big && e-prev > 1448 {
					rt.Fatalf("%d bytes with markers do not fit a segment", e-prev)
				}
				prev = e
			}
			stream = append(stream, o.flat(!big)...)
			o.advance(o.total)
		}
		// Take the stream apart as RFC 5044 section 4.3 says, a word at a time.
		d := &deliver{t: rt, crc: false}
		var f, raw []byte // the FPDU without and with its markers
		start := 0
		for pos := 0; pos < len(stream); pos += 4 {
			word := stream[pos : pos+4]
			if pos%512 == 0 {
				want := 0
				if len(f) == 0 {
					start = pos + 4
				} else {
					want = pos - start
				}
				if got := int(binary.BigEndian.Uint32(word)); got != want {
					rt.Fatalf("marker at %d points back %d, want %d", pos, got, want)
				}
				raw = append(raw, word...)
				continue
			}
			if len(f) == 0 {
				start = pos
			}
			f = append(f, word...)
			if n := fpduLen(int(binary.BigEndian.Uint16(f))); len(f) == n {
				sum := uint32(0)
				if crc {
					sum = crcAdd(0, raw)
				}
				if got := binary.LittleEndian.Uint32(word); got != sum {
					rt.Fatalf("CRC 0x%08x, want 0x%08x over the markers too", got, sum)
				}
				clear(f[n-crcLen:])
				d.fpdu(f)
				f, raw = nil, nil
				continue
			}
			raw = append(raw, word...)
		}
		p.check(rt, d)
	})
}
