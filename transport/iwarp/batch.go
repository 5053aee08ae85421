package iwarp

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/sockio"
)

// batch is what one system call sends: headers, trailers and small payload in an arena, bulk payload where it lies.
type batch struct {
	lent  *batchMem // the memory of the slices below, while there is something to send
	mark  bool      // the stream carries markers: the memory is the batch's own
	arena []byte
	used  int
	run   int // start of the arena bytes that no iovec covers yet
	iov   []unix.Iovec
	pos   int // first iovec with bytes left
	ends  []int
	off   int // bytes sent
	total int
	refs  []ref
	rpos  int          // refs dropped
	part  []unix.Iovec // scratch for a part of iov
	short bool         // the last send was not taken whole
}

const maxFPDUs = 512 // of a batch; the arena holds less unless they are tiny

// fpduRoom is the arena that one FPDU takes at most.
const fpduRoom = untaggedLen + readReqLen + inlineMax + 8

// markedRoom is the same with markers, when everything is copied.
const markedRoom = 66 << 10

// batchMem is the memory of a batch: 76 KiB, which a connection has only while it transmits.
type batchMem struct {
	arena [arenaSize]byte
	iov   [maxIOV]unix.Iovec
	part  [maxIOV]unix.Iovec
	ends  [maxFPDUs]int
	refs  [maxFPDUs]ref
}

// batchMems are shared by all connections.
var batchMems = sync.Pool{New: func() any { return new(batchMem) }}

func (b *batch) init(markers bool) { b.mark = markers }

// take gets memory for an empty batch that has none.
func (b *batch) take() {
	if b.lent != nil {
		return
	}
	m := batchMems.Get().(*batchMem)
	b.lent, b.arena = m, m.arena[:]
	if b.mark {
		b.arena = make([]byte, 4*markedRoom)
	}
	b.iov, b.part, b.ends, b.refs = m.iov[:0], m.part[:0], m.ends[:0], m.refs[:0]
}

// giveBack returns the memory of an empty batch to all connections.
func (b *batch) giveBack() {
	if b.lent == nil || len(b.refs) > 0 {
		return
	}
	b.reset()
	batchMems.Put(b.lent)
	b.lent, b.arena, b.iov, b.part, b.ends, b.refs = nil, nil, nil, nil, nil, nil
}

func (b *batch) left() bool { return b.off < b.total }

func (b *batch) reset() {
	b.used, b.run, b.pos, b.off, b.total = 0, 0, 0, 0, 0
	b.iov, b.ends = b.iov[:0], b.ends[:0]
}

// room reports whether one more FPDU fits, whatever it is.
func (b *batch) room() bool {
	need := fpduRoom
	if b.mark {
		need = markedRoom
	}
	return len(b.arena)-b.used >= need && len(b.iov)+maxSGE+2 <= maxIOV && b.total < maxBatch && len(b.ends) < maxFPDUs
}

func (b *batch) grab(n int) []byte {
	p := b.arena[b.used : b.used+n]
	b.used += n
	return p
}

func (b *batch) point(p []byte) {
	b.iov = sockio.Append(b.iov, p)
}

// seal covers the arena bytes written since the last seal.
func (b *batch) seal() {
	if b.used > b.run {
		b.point(b.arena[b.run:b.used])
		b.run = b.used
	}
}

// add appends one FPDU: header, n bytes from the cursor of m, pad, CRC.
func (b *batch) add(hdr []byte, m *sgl, n, pad int, crc bool, q *QP) {
	h := b.grab(len(hdr))
	copy(h, hdr)
	var sum uint32
	if crc {
		sum = crcAdd(0, h)
	}
	if n > 0 && n <= inlineMax {
		q.cnt.copiedOut[CopyClass(m.total)].Add(uint64(n))
		for n > 0 {
			p := m.next(n)
			d := b.grab(len(p))
			copy(d, p)
			if crc {
				sum = crcAdd(sum, d)
			}
			n -= len(p)
		}
	}
	if n > 0 {
		b.seal()
		for n > 0 {
			p := m.next(n)
			b.point(p)
			if crc {
				sum = crcAdd(sum, p)
			}
			n -= len(p)
		}
	}
	t := b.grab(pad + crcLen)
	clear(t)
	if crc {
		leCRC(t[pad:], crcAdd(sum, t[:pad]))
	}
}

// addMarked is add with markers in the stream, which began pos bytes ago. It copies, and returns the bytes appended:
// markers are for receivers that few have built, and not worth iovecs of 512 bytes.
func (b *batch) addMarked(hdr []byte, m *sgl, n, pad int, crc bool, pos uint64) int {
	from := b.used
	start := pos // of the ULPDU length field
	put := func(p []byte) {
		for len(p) > 0 {
			if pos%512 == 0 {
				// RFC 5044 section 4.3: the distance back to the length field, 0 between FPDUs.
				ptr := uint16(0)
				if pos == start {
					start += 4
				} else {
					ptr = uint16(pos - start)
				}
				binary.BigEndian.PutUint32(b.grab(4), uint32(ptr))
				pos += 4
			}
			k := min(len(p), int(512-pos%512))
			copy(b.grab(k), p[:k])
			pos += uint64(k)
			p = p[k:]
		}
	}
	put(hdr)
	for n > 0 {
		p := m.next(n)
		put(p)
		n -= len(p)
	}
	var zero [4]byte
	put(zero[:pad])
	if pos%512 == 0 { // a marker before the CRC belongs to this FPDU, and to what the CRC covers
		binary.BigEndian.PutUint32(b.grab(4), uint32(pos-start))
	}
	var sum [4]byte
	if crc {
		leCRC(sum[:], crcAdd(0, b.arena[from:b.used]))
	}
	copy(b.grab(4), sum[:])
	return b.used - from
}

// end closes an FPDU of n bytes.
func (b *batch) end(n int) {
	b.total += n
	b.ends = append(b.ends, b.total)
}

// ref is an FPDU of the batch that points into a window.
type ref struct {
	w   *window
	end int
}

// ref keeps w from being bound again, or reported dead, while the FPDU that was just ended points into it.
func (b *batch) ref(w *window) {
	w.txRefs++
	b.refs = append(b.refs, ref{w, b.total})
}

// dropRefs lets go of the windows whose FPDUs end at off or before it.
func (b *batch) dropRefs(off int) {
	for ; b.rpos < len(b.refs) && b.refs[b.rpos].end <= off; b.rpos++ {
		w := b.refs[b.rpos].w
		b.refs[b.rpos].w = nil
		if w.txRefs--; w.txRefs == 0 && !w.valid.Load() {
			w.q.notify() // its Invalidate may wait
		}
	}
	if b.rpos == len(b.refs) {
		b.refs, b.rpos = b.refs[:0], 0
	}
}

// plan is what the next send hands to the socket: iovecs and their bytes. With eor the last byte will end a TCP
// segment, so the remainder of an FPDU of which a part is gone goes alone, and the next one begins a segment.
func (b *batch) plan(eor bool) ([]unix.Iovec, int) {
	b.seal()
	if eor {
		if end := b.fpduEnd(); end != b.off {
			return b.cut(end - b.off), end - b.off
		}
	}
	return b.iov[b.pos:], b.total - b.off
}

// send hands the batch, or what plan says, to the socket without blocking.
func (b *batch) send(fd int, eor bool) (int, error) {
	iov, want := b.plan(eor)
	flags := 0
	if eor {
		flags = unix.MSG_EOR // nothing is appended to the segment that this ends
	}
	n, errno := sockio.Sendv(uintptr(fd), iov, flags)
	if errno != 0 {
		b.short = true
		return 0, errno
	}
	b.short = n < want
	return n, nil
}

// fpduEnd is the end of the FPDU of which a part has been sent, or off when none is.
func (b *batch) fpduEnd() int {
	prev := 0
	for _, e := range b.ends {
		if prev == b.off {
			return b.off
		}
		if b.off < e {
			return e
		}
		prev = e
	}
	return b.off
}

// cut returns iovecs for the next n bytes.
func (b *batch) cut(n int) []unix.Iovec {
	b.part = b.part[:0]
	for _, v := range b.iov[b.pos:] {
		if n == 0 {
			break
		}
		v.Len = min(v.Len, uint64(n))
		n -= int(v.Len)
		b.part = append(b.part, v)
	}
	return b.part
}

// advance moves past n bytes sent.
func (b *batch) advance(n int) {
	b.off += n
	for n > 0 {
		v := &b.iov[b.pos]
		if uint64(n) < v.Len {
			v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
			v.Len -= uint64(n)
			return
		}
		n -= int(v.Len)
		b.pos++
	}
}

// rest copies what is left of the FPDU of which a part has been sent.
func (b *batch) rest() []byte {
	b.seal()
	var out []byte
	for _, v := range b.cut(b.fpduEnd() - b.off) {
		out = append(out, unsafe.Slice(v.Base, v.Len)...)
	}
	return out
}
