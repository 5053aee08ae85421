package rpcserver

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// rdmaCall is a slot: the RDMA side of one call, from its receive to the completion of its reply.
type rdmaCall struct {
	inMessage
	conn *rdmaConn
	idx  int
	next *rdmaCall // in the idle list
	call *Call
	h    rpcrdma.Header
	recv int // index of the receive it came in, -1 when posted again
	send mem.Span

	state   slotState
	dataAt  uint32 // the position in the message of the data item in a read chunk, 0 for none
	dataLen int    // bytes of its segments
	zeroLen int    // bytes of the position-zero chunk
	pending int    // Reads not complete

	room     int64     // taken of the host's room for registered memory, bytes
	sinkRoom int64     // of it for the sink
	lacks    int64     // what there was no room for; 0 where the connection's quota has no memory
	since    time.Time // its Reads, or its reply, are on their way

	dataBufs, zeroBufs, sinkBufs, outBufs []*mem.Buf
	data, sink                            [][]byte

	wrs  []transport.WR
	sges []mem.Span
	rh   rpcrdma.Header    // of the reply
	used []rpcrdma.Segment // of rh
}

// plan looks at a call's read list. What a client may ask for is bounded here, before memory is taken.
func (r *rdmaCall) plan(inline int) bool {
	r.dataAt, r.dataLen, r.zeroLen, r.pending = 0, 0, 0, 0
	for i := range r.h.Reads {
		s := &r.h.Reads[i]
		if s.Off+uint64(s.Len) < s.Off {
			return false
		}
		switch {
		case s.Position == 0:
			r.zeroLen += int(s.Len)
			if s.Len > maxLongCall || r.zeroLen > maxLongCall {
				return false
			}
		case s.Position%4 != 0, r.dataAt != 0 && s.Position != r.dataAt, s.Len > MaxPayload+4:
			// RFC 8166 section 3.4.5: a position is a multiple of four. More than one data item is in no NFSv3 call
			// (RFC 8267 section 2).
			return false
		default:
			r.dataAt = s.Position
			if r.dataLen += int(s.Len); r.dataLen > MaxPayload+4 {
				return false
			}
		}
	}
	if r.h.Proc == rpcrdma.Nomsg {
		return r.zeroLen > 0 && inline == 0
	}
	return r.zeroLen == 0 && inline > 0 && int(r.dataAt) <= inline
}

// readMemoryLocked gets memory for all read chunks of the call, or none. That for a position-zero chunk counts for the copy of it too, as
// long as the call waits for no other memory.
func (r *rdmaCall) readMemoryLocked() error {
	c := r.conn
	n := mem.Capacity(r.dataLen) + mem.Capacity(r.zeroLen)
	if !c.takeRoomLocked(r, n) {
		return mem.ErrNoMemory
	}
	var err error
	if r.dataLen > 0 {
		r.dataBufs, err = c.quota.GetAll(r.dataLen, r.dataBufs[:0])
	}
	if r.zeroLen > 0 && err == nil {
		if r.zeroBufs, err = c.quota.GetAll(r.zeroLen, r.zeroBufs[:0]); err != nil {
			releaseBufs(&r.dataBufs)
		}
	}
	if err != nil {
		r.giveRoom(n)
	}
	return err
}

// fetchesNothing reports that the call's read list has no bytes, or that there is none.
func (r *rdmaCall) fetchesNothing() bool { return r.dataLen+r.zeroLen == 0 }

// listReadsLocked queues the RDMA Reads of the call: one for each segment, or more where a segment spans two buffers.
func (r *rdmaCall) listReadsLocked() {
	slots.Move(&r.state, slotReading)
	r.since = time.Now()
	var data, zero cursor
	data.bufs, zero.bufs = r.dataBufs, r.zeroBufs
	for i := range r.h.Reads {
		s := &r.h.Reads[i]
		cur := &data
		if s.Position == 0 {
			cur = &zero
		}
		from, left := transport.Remote{STag: s.Handle, Off: s.Off}, int(s.Len)
		for left > 0 {
			span := cur.next(min(left, r.conn.caps.MaxMessage))
			r.conn.owner.ReadLocked(kindRead|uint64(r.idx), from, span)
			r.pending++
			from.Off += uint64(span.Len)
			left -= span.Len
		}
	}
}

// cursor cuts spans off a list of buffers.
type cursor struct {
	bufs []*mem.Buf
	off  int
}

func (c *cursor) next(n int) mem.Span {
	for c.off == c.bufs[0].Len() {
		c.bufs, c.off = c.bufs[1:], 0
	}
	s := c.bufs[0].Span()
	s = s.Cut(c.off, min(n, s.Len-c.off))
	c.off += s.Len
	return s
}

// readDoneLocked counts a Read that ended, and reports true when it was the last one and the call can be executed or
// dropped.
func (r *rdmaCall) readDoneLocked(failed bool) bool {
	if failed && r.state == slotReading {
		slots.Move(&r.state, slotFailing)
	}
	if r.pending--; r.pending > 0 {
		return false
	}
	if r.state == slotFailing {
		r.abandonLocked()
		return false
	}
	slots.Move(&r.state, slotPlaced)
	return true
}

// abandonLocked drops a call of which no Read is under way: the connection is ending.
func (r *rdmaCall) abandonLocked() {
	call := r.call
	r.call, call.from = nil, nil
	call.release()
	r.conn.calls--
	r.conn.inFlight.Done()
	r.freeLocked()
}

// assemble makes the message whole: a position-zero chunk is the message.
func (r *rdmaCall) assemble(call *Call) {
	if r.zeroLen > 0 {
		call.grow(0, r.zeroLen)
		n := 0
		for _, b := range r.zeroBufs {
			n += copy(call.msg[n:], b.Bytes())
		}
		call.copied = n
		releaseBufs(&r.zeroBufs)
	}
	r.data = r.data[:0]
	for _, b := range r.dataBufs {
		r.data = append(r.data, b.Bytes())
	}
}

// chunk is a data item in a read chunk. Its position must be where the decoder stands (RFC 8166
// section 3.4.5); its padding may be there or not.
func (r *rdmaCall) chunk(n int) (data [][]byte, apart bool, err error) {
	if r.dataAt == 0 {
		return nil, false, nil
	}
	if at := r.call.Args.reader().Offset(); int(r.dataAt) != at {
		return nil, true, fmt.Errorf("rpc: the read chunk's position is %d, the data item's is %d (RFC 8166 section 3.4.5)", r.dataAt, at)
	}
	if n > r.dataLen || r.dataLen > n+xdr.Pad(n)+4 {
		return nil, true, fmt.Errorf("rpc: a read chunk of %d bytes for a data item of %d", r.dataLen, n)
	}
	return r.data, true, nil
}

func (r *rdmaCall) sinkFor(n int) ([][]byte, error) {
	n = max(n, 1)
	var err error = ErrNoMemory
	if r.sinkRoomFor(mem.Capacity(n)) {
		r.sinkBufs, err = r.conn.quota.GetAll(n, r.sinkBufs[:0])
	}
	if err != nil {
		r.giveRoom(r.sinkRoom)
		r.sinkRoom = 0
		if len(r.dataBufs) > 0 {
			return nil, errBoth
		}
		r.giveRoom(r.room) // for the copy of a position-zero chunk
		return nil, err
	}
	r.sink = r.sink[:0]
	for _, b := range r.sinkBufs {
		r.sink = append(r.sink, b.Bytes())
	}
	return r.sink, nil
}

// errBoth is the answer to a call that has fetched something, and asks for memory for a bulk result that there is none for: what holds memory waits for
// none. No procedure has both, so the client has sent a chunk that nothing is in.
var errBoth = errors.New("rpc: a call with data in a chunk does not wait for memory for its result")

// letArgsGo gives back what the call needs no more when it has been executed, so that a reply that waits for memory holds nothing but its payload.
func (r *rdmaCall) letArgsGo(call *Call) {
	call.letMsgGo()
	releaseBufs(&r.dataBufs)
	releaseBufs(&r.zeroBufs)
	r.data = r.data[:0]
	if call.payload <= 0 {
		releaseBufs(&r.sinkBufs)
		r.sinkRoom = 0
	}
	r.giveRoom(r.room - r.sinkRoom)
}

// sinkRoomFor takes room for the sink, with what an earlier try has taken.
func (r *rdmaCall) sinkRoomFor(n int64) bool {
	if n <= r.sinkRoom {
		return true
	}
	r.giveRoom(r.sinkRoom)
	r.sinkRoom = 0
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takeRoomLocked(r, n) {
		return false
	}
	r.sinkRoom = n
	return true
}

func (r *rdmaCall) dropSink() { releaseBufs(&r.sinkBufs) }

func (r *rdmaCall) dropBufs() {
	r.giveRoom(r.room)
	r.sinkRoom, r.lacks = 0, 0
	releaseBufs(&r.dataBufs)
	releaseBufs(&r.zeroBufs)
	releaseBufs(&r.sinkBufs)
	releaseBufs(&r.outBufs)
}

func releaseBufs(l *[]*mem.Buf) {
	for i, b := range *l {
		b.Release()
		(*l)[i] = nil
	}
	*l = (*l)[:0]
}

// local keeps spans for a work request in the slot's memory.
func (r *rdmaCall) local(s ...mem.Span) []mem.Span {
	from := len(r.sges)
	r.sges = append(r.sges, s...)
	return r.sges[from:len(r.sges):len(r.sges)]
}

// build makes the work requests of the reply: Writes into the chunks that the client offered, and a Send. It reports
// false when the reply does not fit what was offered (RFC 8166 section 4.5.3), and mem.ErrNoMemory when it can be built
// later.
func (r *rdmaCall) build(call *Call) (bool, error) {
	c := r.conn
	r.wrs, r.sges = r.wrs[:0], r.sges[:0]
	h := &r.rh
	h.Reset()
	h.XID, h.Proc, r.used = call.XID, rpcrdma.Msg, r.used[:0] // the credits come in creditLocked
	payload := max(call.payload, 0)
	// The write list comes back with the lengths that were used (RFC 8166 section 4.3.2).
	for i, w := range r.h.Writes {
		segs := r.h.Segments(w)
		used := 0
		if i == 0 && len(segs) > 0 && payload > 0 { // section 4.3.2.3: what an empty chunk stands for stays in the message
			used = payload
		}
		if uint64(used) > rpcrdma.Total(segs) {
			return false, nil
		}
		src := spans{bufs: r.sinkBufs}
		if used > 0 {
			r.write(segs, &src, used)
			payload = 0
		}
		h.AddWrite(r.usedOf(segs, used)...)
	}
	pad := xdr.Pad(payload)
	total := len(call.Out) + payload + pad
	b := r.send.Bytes()[:0]
	n := 0
	switch {
	case r.h.HasReply:
		// A client that offers a reply chunk expects it to be used: Linux refuses RDMA_MSG then.
		h.Proc = rpcrdma.Nomsg
		if uint64(total) > rpcrdma.Total(r.h.Reply) {
			return false, nil
		}
		if err := r.writeReply(call, payload, pad, total); err != nil {
			return false, err
		}
		h.SetReply(r.usedOf(r.h.Reply, total))
		if h.Len() > c.maxSend {
			return false, nil
		}
		n = len(h.Append(b))
	case h.Len()+total <= c.maxSend:
		b = h.Append(b)
		if payload > 0 {
			b = call.appendReply(b)
			c.s.stats.copiedOut.add(payload, payload)
		} else {
			b = append(b, call.Out...)
		}
		n = len(b)
	default:
		return false, nil
	}
	wr := transport.WR{Op: transport.OpSend, Flags: transport.Signaled, Token: kindSend | uint64(r.idx), Local: r.local(r.send.Cut(0, n))}
	if inv, ok := r.oneHandle(); ok && c.invalidate {
		wr.Op, wr.Inv = transport.OpSendInv, inv
	}
	r.wrs = append(r.wrs, wr)
	return true, nil
}

// noBytes are a payload's padding.
var noBytes [3]byte

// writeReply copies the message, but not the payload, into registered memory and lists the Writes of a long reply.
func (r *rdmaCall) writeReply(call *Call, payload, pad, total int) error {
	size := len(call.Out) + pad
	if err := r.outRoomFor(mem.Capacity(size)); err != nil {
		return err
	}
	var err error
	if r.outBufs, err = r.conn.quota.GetAll(size, r.outBufs[:0]); err != nil {
		r.giveRoom(mem.Capacity(size))
		return err
	}
	// What stands before the payload, its padding, and what stands behind it.
	before, behind := call.Out, []byte(nil)
	if payload > 0 {
		before, behind = call.before(), call.behind()
	}
	var to cursor
	to.bufs = r.outBufs
	for _, b := range [...][]byte{before, noBytes[:pad], behind} {
		for len(b) > 0 {
			b = b[copy(to.next(len(b)).Bytes(), b):]
		}
	}
	src := spans{bufs: r.outBufs, limit: len(before)}
	src.then(r.sinkBufs, payload)
	r.write(r.h.Reply, &src, total)
	return nil
}

// outRoomFor takes room for a long reply. Beside a payload that is a page, as a rule, for which none is waited for.
func (r *rdmaCall) outRoomFor(n int64) error {
	r.lacks = 0
	if r.room > 0 {
		r.forceRoom(n)
		return nil
	}
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.takeRoomLocked(r, n) {
		return mem.ErrNoMemory
	}
	return nil
}

// write lists RDMA Writes of n bytes of src over segs, in order.
func (r *rdmaCall) write(segs []rpcrdma.Segment, src *spans, n int) {
	for _, s := range segs {
		to, left := transport.Remote{STag: s.Handle, Off: s.Off}, min(int(s.Len), n)
		n -= left
		for left > 0 {
			from, len0 := len(r.sges), 0
			for len0 < left && len(r.sges)-from < max(r.conn.caps.MaxSGE, 1) {
				sp := src.next(left - len0)
				r.sges = append(r.sges, sp)
				len0 += sp.Len
			}
			r.wrs = append(r.wrs, transport.WR{Op: transport.OpWrite, Token: kindWrite | uint64(r.idx), Local: r.sges[from:len(r.sges):len(r.sges)], Remote: to})
			to.Off += uint64(len0)
			left -= len0
		}
		if n == 0 {
			return
		}
	}
}

// usedOf returns segs with the lengths that n bytes use.
func (r *rdmaCall) usedOf(segs []rpcrdma.Segment, n int) []rpcrdma.Segment {
	from := len(r.used)
	for _, s := range segs {
		s.Len = uint32(min(int(s.Len), n))
		n -= int(s.Len)
		r.used = append(r.used, s)
	}
	return r.used[from:len(r.used):len(r.used)]
}

// oneHandle returns the handle that all segments of the call have in common. Only then may the reply invalidate it:
// a client that offered several could not tell the others' fate (RFC 8797 section 4.3).
func (r *rdmaCall) oneHandle() (h uint32, ok bool) {
	see := func(s rpcrdma.Segment) bool {
		if ok && h != s.Handle {
			return false
		}
		h, ok = s.Handle, true
		return true
	}
	for _, s := range r.h.Reads {
		if !see(s.Segment) {
			return 0, false
		}
	}
	for _, w := range r.h.Writes {
		for _, s := range r.h.Segments(w) {
			if !see(s) {
				return 0, false
			}
		}
	}
	for _, s := range r.h.Reply {
		if !see(s) {
			return 0, false
		}
	}
	return h, ok
}

// spans hands out registered memory of a reply: that of some buffers up to a place, then that of others, then the rest of the first.
type spans struct {
	bufs  []*mem.Buf
	off   int
	limit int // bytes left of bufs before the others come, 0 for all
	more  []*mem.Buf
	left  int // bytes of more
	rest  []*mem.Buf
	from  int // in the first of rest
}

func (s *spans) then(bufs []*mem.Buf, n int) { s.more, s.left = bufs, n }

func (s *spans) next(n int) mem.Span {
	for {
		sp := s.bufs[0].Span()
		if s.off == sp.Len {
			s.bufs, s.off = s.bufs[1:], 0
			continue
		}
		k := min(n, sp.Len-s.off)
		if s.limit > 0 {
			k = min(k, s.limit)
		}
		sp = sp.Cut(s.off, k)
		s.off += k
		if s.limit > 0 {
			if s.limit -= k; s.limit == 0 {
				s.turn()
			}
		}
		return sp
	}
}

// turn goes on to the others, or from their end to the rest.
func (s *spans) turn() {
	if s.left > 0 {
		s.rest, s.from = s.bufs, s.off
		s.bufs, s.off, s.limit, s.left = s.more, 0, s.left, 0
		return
	}
	s.bufs, s.off = s.rest, s.from
}
