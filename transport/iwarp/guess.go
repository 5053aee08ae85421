package iwarp

import (
	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/transport"
)

// A peer that keeps FPDUs within TCP segments answers a Read with many equal ones. One readv takes a run of them: each
// payload to where it belongs if the guess is right, and the trailer and header between two payloads to a slot. What a
// wrong guess misplaced is taken back to the look-ahead at once; all of a Read's sink is written by its response, so
// it is never seen. A Write is not guessed at: where it ends, only its last segment says, and what lies behind it in
// the window may be there to stay.

// slot is what lies between the payloads of two guessed segments, and the guess behind it.
type slot struct {
	b   [4 + crcLen + taggedLen]byte
	n   int // bytes of b in use: pad and CRC of one segment, header of the next
	len int // payload guessed
}

// guess appends iovecs for segments like the current one, of which pad is the pad, and returns the bytes they take: 0
// when there is nothing to guess. Only the rest of this message is guessed at, never a second one.
func (x *rx) guess(pad int) int {
	full := x.h.ulpdu - (taggedLen - 2)
	if full == 0 {
		return 0
	}
	total, g := 0, 0
	for left := x.rest.total; g < maxGuess-1 && left > 0; g++ {
		n := min(full, left)
		if total+n+2*len(x.slots[0].b) > maxGuessed || len(x.iov)+3+maxSGE > cap(x.iov) {
			break
		}
		total += x.slot(g, pad, n) + n
		x.point(&x.rest, n)
		x.rest.skip(n)
		left -= n
		pad = fpduPad(taggedLen - 2 + n)
	}
	x.rest.i, x.rest.off = 0, 0
	if g == 0 {
		return 0
	}
	total += x.slot(g, pad, 0)
	x.guesses = g + 1
	return total
}

// slot prepares slot g for a trailer of pad and CRC and a header, with n bytes of payload behind it.
func (x *rx) slot(g, pad, n int) int {
	s := &x.slots[g]
	s.n, s.len = pad+crcLen+taggedLen, n
	x.iov = append(x.iov, unix.Iovec{Base: &s.b[0], Len: uint64(s.n)})
	return s.n
}

// settle goes through the n bytes that a guessed readv brought behind the payload that was certain.
func (x *rx) settle(q *QP, n int) *transport.TerminateError {
	rest := x.rest // the header of each segment sets it again
	for g := 0; g < x.guesses && n > 0; g++ {
		s := &x.slots[g]
		k := min(n, s.n)
		x.w += copy(x.buf[x.w:], s.b[:k])
		if n -= k; n == 0 {
			break // the engine parses what there is
		}
		if t := q.process(); t != nil {
			return t
		}
		k = min(n, s.len)
		right := 0
		if x.ph == inPayload && !x.discard && x.r == x.w && x.sink.start() == rest.start() {
			right = min(k, x.left)
			x.placed(q, right)
		}
		if right < k || x.left > 0 && n > k {
			rest.skip(right)
			x.takeBack(q, &rest, g, k-right, n-right)
			break
		}
		rest.skip(k)
		n -= k
	}
	return nil
}

// takeBack moves n bytes that a wrong guess misplaced to the look-ahead: k of the payload of slot g, the slots and
// payloads behind them.
func (x *rx) takeBack(q *QP, rest *sgl, g, k, n int) {
	q.cnt.takenBack.Add(uint64(n))
	x.w = copy(x.buf, x.buf[x.r:x.w])
	x.r = 0
	for {
		for n -= k; k > 0; {
			p := rest.next(k)
			x.w += copy(x.buf[x.w:], p)
			k -= len(p)
		}
		if n == 0 {
			return
		}
		g++
		s := &x.slots[g]
		k = min(n, s.n)
		x.w += copy(x.buf[x.w:], s.b[:k])
		n -= k
		k = min(n, s.len)
	}
}
