package iwarp

import (
	"errors"
	"io"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/transport"
)

// rx is the receive side. All of it is the owner's.
type rx struct {
	lent   *[lookAhead]byte // the look-ahead's memory; a connection that waits has none
	buf    []byte           // look-ahead: buf[r:w] is unparsed
	r, w   int
	socket known

	ph      parsing
	h       ddpHeader
	raw     [untaggedLen + readReqLen]byte // header as received, for a Terminate
	rawLen  int
	left    int // payload bytes to come
	sink    sgl
	discard bool // payload of a segment that broke a rule: only its CRC is still of interest
	bad     *transport.TerminateError
	sinkLen int // of the whole message or buffer, for the copy statistics
	crc     uint32
	seen    bool // a whole FPDU has arrived

	cur struct { // the Send being received
		active bool
		recvBuf
		got int
	}
	win     *window // that the current Write goes to
	winGen  uint32
	read    *readSink
	msnSend uint32
	msnRead uint32
	rtrSend bool // a zero-length Send is owed that is no message (RFC 6581 section 9.2)
	fullLen int  // payload of the last Write segment that was not the last of its message: how large the peer makes them
	sendLen int  // the last Send, if it was one short FPDU: its length, which the one behind a Write is likely to have
	rest    sgl  // of a Read's sink, behind the current segment
	slots   [maxGuess]slot
	guesses int // slots in use

	iov   []unix.Iovec
	in    bool // within the transmitter, of which a defect is no matter of the parser's
	turns int  // of the engine since the socket took nothing any more
}

// close ends what the parser does, whatever that is.
func (x *rx) close() {
	if x.ph != closed {
		parsings.Move(&x.ph, closed)
	}
}

func (x *rx) init(q *QP, n negotiated) {
	x.iov = make([]unix.Iovec, 0, 3*maxSGE+2*maxGuess+2)
	x.msnSend, x.msnRead = 1, 1
	x.fullLen = q.opt.CopyThreshold
	x.rtrSend = n.rtrIn == rtrSend
}

// lookAheads are shared by all connections.
var lookAheads = sync.Pool{New: func() any { return new([lookAhead]byte) }}

func (x *rx) takeBuf() {
	if x.lent == nil {
		x.lent = lookAheads.Get().(*[lookAhead]byte)
		x.buf = x.lent[:]
	}
}

// giveBuf gives an empty look-ahead back.
func (x *rx) giveBuf() {
	if x.lent != nil && x.r == x.w {
		lookAheads.Put(x.lent)
		x.lent, x.buf, x.r, x.w = nil, nil, 0, 0
	}
}

// engine reads and processes until there are completions for the owner, the socket is empty, or its turn is over. Behind a completion it
// goes on for gather bytes: an owner that got each one by itself would answer each with a system call.
func (q *QP) engine(fd uintptr) {
	defer q.defect()
	from := q.cnt.bytesIn.Load()
	for range pollReads {
		if q.life.dead() || q.rx.ph == closed {
			return
		}
		if q.rxcq.Len() > 0 && (q.rx.ph == starved || q.cnt.bytesIn.Load()-from >= gather) {
			return
		}
		var more bool
		var t *transport.TerminateError
		var err error
		if q.rx.ph == starved {
			more = true
			parsings.Move(&q.rx.ph, inHeader)
		} else {
			more, t, err = q.rx.fill(q, int(fd))
		}
		if errors.Is(err, io.EOF) && q.rxcq.Len() > 0 {
			return // the owner handles what came before the end, and the next read finds it again
		}
		if err != nil {
			q.rx.close()
			if errors.Is(err, io.EOF) {
				err = errPeerClosed
			} else {
				err = lost(err)
			}
			if q.life.is() == draining {
				err = q.lostErr() // which came first
			}
			q.fail(err, nil, nil)
			return
		}
		if t == nil {
			t = q.process()
		}
		if t != nil {
			q.breaks(t, q.rx.blame(t))
			return
		}
		if q.rx.ph == starved && q.rxcq.Len() == 0 {
			// The owner holds nothing that would come back, so waiting would be for ever.
			q.fail(errNoMemory, nil, nil)
			return
		}
		if !more {
			if q.rx.socket != drained || q.rxcq.Len() > 0 {
				q.rx.socket = short // behind completions an empty socket is no news either: Wait looks again
			} else if q.life.is() == draining {
				q.fail(q.lostErr(), nil, nil)
			}
			return
		}
	}
	if q.life.is() == draining {
		if q.rx.turns++; q.rx.turns > lastTurns {
			q.fail(q.lostErr(), nil, nil) // a peer that sends for ever over a socket that takes nothing
		}
	}
}

func (q *QP) lostErr() error {
	q.tx.Lock()
	defer q.tx.Unlock()
	return q.tx.lost
}

// pump is the owner's pumpLocked.
func (q *QP) pump() {
	q.rx.in = true
	q.tx.pumpLocked(q.opt.NoInline)
	q.rx.in = false
}

// defect ends this connection, and no other, for a mistake in the code that reads what its peer says; that code lets go of
// its locks by defer. One in the transmitter, which shares its state with other goroutines, ends the process.
func (q *QP) defect() {
	p := recover()
	if p == nil {
		return
	}
	if q.rx.in {
		panic(p)
	}
	q.breaks(violation(transport.LayerRDMAP, rdmapLocal, 0, "RFC 5040 section 4.8", "a defect in the receiver here: %v\n%s", p, debug.Stack()), nil)
}

// breaks ends the connection for what was read.
func (q *QP) breaks(t *transport.TerminateError, hdr []byte) {
	q.rx.close()
	q.tx.Lock()
	q.tx.releaseLocked() // it was an FPDU of the initiator's
	q.tx.Unlock()
	q.fail(t, t, hdr)
}

// narrow says that the look-ahead stops at the next header, so that payload behind it is placed and not copied: while
// there is a sink worth it. Writes that come in TCP segments are copied, for a system call each costs more; Read
// Responses in segments are placed many at a time (guess.go).
func (x *rx) narrow(q *QP) bool {
	if q.opt.NoBatch || q.opt.NoZeroCopy {
		return q.opt.NoBatch
	}
	return q.stags.largeReads.Load() > 0 || q.stags.large.Load() > 0 && x.fullLen >= q.opt.CopyThreshold
}

// fill does one readv: the rest of this payload to its place, what follows to the look-ahead, or, inside a message, to
// where the next segments belong if they are as long as this one. It reports whether there may be more in the socket.
func (x *rx) fill(q *QP, fd int) (more bool, term *transport.TerminateError, err error) {
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if x.r > 0 && len(x.buf)-x.w < len(x.buf)/2 {
		x.w = copy(x.buf, x.buf[x.r:x.w])
		x.r = 0
	}
	x.takeBuf()
	x.iov = x.iov[:0]
	x.socket = unread
	ahead := len(x.buf) - x.w
	narrow := x.narrow(q)
	direct, guessed := 0, 0
	have := x.w - x.r
	switch x.ph {
	case inPayload: // have is 0
		pad := fpduPad(x.h.ulpdu)
		if !x.discard && !q.opt.NoZeroCopy {
			direct = x.left
			x.point(&x.sink, x.left)
			if narrow && !q.opt.NoBatch && !x.h.last && x.h.op == opReadResp {
				guessed = x.guess(pad)
			}
		}
		if narrow {
			ahead = min(ahead, pad+crcLen+x.behind(q))
		}
	case inTrailer:
		if narrow {
			ahead = min(ahead, fpduPad(x.h.ulpdu)+crcLen+x.behind(q)-have)
		}
	default:
		if narrow {
			ahead = min(ahead, max(x.need(q)-have, 1))
		}
	}
	if guessed > 0 {
		ahead = 0
	} else {
		x.iov = sockio.Append(x.iov, x.buf[x.w:x.w+ahead])
	}
	want := direct + guessed + ahead
	n, errno := sockio.Readv(uintptr(fd), x.iov)
	q.cnt.reads.Add(1)
	switch {
	case errno == unix.EAGAIN:
		x.socket = drained
		return false, nil, nil
	case errno != 0:
		return false, nil, errno
	case n == 0:
		return false, nil, io.EOF
	}
	q.cnt.bytesIn.Add(uint64(n))
	placed := min(n, direct)
	x.placed(q, placed)
	if guessed > 0 {
		return n == want, x.settle(q, n-placed), nil
	}
	x.w += n - placed
	return n == want, nil, nil
}

// behind is how many bytes behind the current FPDU come along: the header of the next one. Behind the end of a Write that is likely the Send
// that tells of it, and then the next header. Where it is another Write, as many bytes of its payload are copied.
func (x *rx) behind(q *QP) int {
	if x.h.op == opWrite && x.h.last && !q.opt.NoBatch {
		return x.sendLen + taggedLen
	}
	return taggedLen
}

// point appends iovecs for the next n bytes at the cursor of m, which stays.
func (x *rx) point(m *sgl, n int) {
	for i, off := m.i, m.off; n > 0; i, off = i+1, 0 {
		b := m.seg[i][off:]
		if len(b) == 0 {
			continue
		}
		b = b[:min(n, len(b))]
		x.iov = sockio.Append(x.iov, b)
		n -= len(b)
	}
}

// placed says that n bytes of payload are where they belong.
func (x *rx) placed(q *QP, n int) {
	x.left -= n
	for n > 0 {
		p := x.sink.next(n)
		if q.crc {
			x.crc = crcAdd(x.crc, p)
		}
		n -= len(p)
	}
}

// need is how many bytes make the next step, in the look-ahead from r on, when the header is not complete.
func (x *rx) need(q *QP) int {
	have := x.w - x.r
	if have < 4 {
		return taggedLen // the shorter header, so that not one byte of payload comes along
	}
	b := x.buf[x.r:x.w]
	if headerLen(b) == taggedLen {
		return taggedLen
	}
	// An untagged segment is small or goes to a receive: take it and the header behind it in one.
	u := int(b[0])<<8 | int(b[1])
	if f := fpduLen(u); f < q.opt.CopyThreshold {
		return f + taggedLen
	}
	return untaggedLen
}

// process parses what the look-ahead holds, as far as it goes. Behind a Terminate nothing is delivered.
func (q *QP) process() *transport.TerminateError {
	for more := true; more; {
		var t *transport.TerminateError
		switch q.rx.ph {
		case inHeader:
			more, t = q.takeHeader()
		case inPayload:
			more = q.takePayload()
		case inTrailer:
			more, t = q.takeTrailer()
		default:
			return nil
		}
		if t != nil {
			return t
		}
	}
	return nil
}

// takeHeader goes on to the payload of the FPDU whose header the look-ahead holds. False means that it has to wait.
func (q *QP) takeHeader() (bool, *transport.TerminateError) {
	x := &q.rx
	b := x.buf[x.r:x.w]
	n, t := x.headerSize(b)
	if t != nil || n == 0 {
		return false, t
	}
	if !q.receivable() {
		parsings.Move(&x.ph, starved)
		return false, nil
	}
	x.rawLen = copy(x.raw[:], b[:n])
	x.r += n
	x.left = x.h.ulpdu + 2 - n
	x.discard = false
	parsings.Move(&x.ph, inPayload)
	if q.crc {
		x.crc = crcAdd(0, b[:n])
	}
	if x.bad = q.header(b[:n]); x.bad != nil {
		if !q.crc {
			return false, x.bad
		}
		x.discard = true // RFC 5044 section 8: whether the header can be believed, the CRC says
	}
	return true, nil
}

// headerSize parses the header that b begins with. It returns its size, with all of a Read Request or a Terminate, or 0 if there is more
// to come.
func (x *rx) headerSize(b []byte) (int, *transport.TerminateError) {
	if len(b) < 4 {
		return 0, nil
	}
	n := headerLen(b)
	// Before the rest of the header is waited for: it may never come.
	if u := int(b[0])<<8 | int(b[1]); u+2 < n {
		x.rawLen = 0
		return 0, violation(transport.LayerLLP, 0, llpMarker, "RFC 5044 section 4.1",
			"an FPDU with %d bytes of ULPDU, too few for its %d-byte DDP header", u, n-2)
	}
	if len(b) < n {
		return 0, nil
	}
	x.h.parse(b)
	switch {
	case x.h.tagged:
	case x.h.op == opReadReq && x.h.ulpdu == untaggedLen-2+readReqLen:
		n += readReqLen
	case x.h.op == opTerminate && x.h.ulpdu <= untaggedLen+maxTerminate:
		n = x.h.ulpdu + 2
	}
	if len(b) < n {
		return 0, nil
	}
	return n, nil
}

// takePayload moves payload from the look-ahead to its place. False means that some is still to come.
func (q *QP) takePayload() bool {
	x := &q.rx
	n := min(x.left, x.w-x.r)
	if n > 0 {
		p := x.buf[x.r : x.r+n]
		x.r += n
		x.left -= n
		if q.crc {
			x.crc = crcAdd(x.crc, p)
		}
		if !x.discard {
			x.sink.copyIn(p)
			q.cnt.copiedIn[CopyClass(x.sinkLen)].Add(uint64(n))
		}
	}
	if x.left > 0 {
		return false
	}
	parsings.Move(&x.ph, inTrailer)
	return true
}

// takeTrailer checks the CRC and gives the FPDU its effect. False means that the trailer is still to come.
func (q *QP) takeTrailer() (bool, *transport.TerminateError) {
	x := &q.rx
	pad := fpduPad(x.h.ulpdu)
	if x.w-x.r < pad+crcLen {
		return false, nil
	}
	b := x.buf[x.r : x.r+pad+crcLen]
	x.r += len(b)
	if q.crc {
		sum := crcAdd(x.crc, b[:pad])
		got := uint32(b[pad]) | uint32(b[pad+1])<<8 | uint32(b[pad+2])<<16 | uint32(b[pad+3])<<24
		if sum != got {
			return false, violation(transport.LayerLLP, 0, llpCRC, "RFC 5044 section 4.4",
				"the CRC of an FPDU with %d bytes of ULPDU is 0x%08x, calculated 0x%08x", x.h.ulpdu, got, sum)
		}
	}
	if x.bad != nil {
		return false, x.bad
	}
	parsings.Move(&x.ph, inHeader)
	q.cnt.fpdusIn.Add(1)
	if !x.seen {
		x.seen = true
		q.firstFPDU()
	}
	return true, q.finish()
}

// releaseLocked lets a responder transmit from now on (RFC 5044 section 7.1.3), and reports whether it might not before; tx is held.
func (t *tx) releaseLocked() bool {
	if t.state != held {
		return false
	}
	sendings.Move(&t.state, quiet)
	return true
}

// firstFPDU makes a responder transmit what has been posted already.
func (q *QP) firstFPDU() {
	q.tx.Lock()
	defer q.tx.Unlock()
	if q.tx.releaseLocked() {
		q.pump()
	}
}

// blame is the header that a Terminate for t carries.
func (x *rx) blame(t *transport.TerminateError) []byte {
	if t.Layer == transport.LayerLLP || x.rawLen < taggedLen || x.rawLen < headerLen(x.raw[:]) {
		return nil
	}
	n := headerLen(x.raw[:])
	if x.h.op == opReadReq && x.rawLen == n+readReqLen {
		n += readReqLen
	}
	return x.raw[:n]
}
