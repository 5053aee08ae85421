package iscsi

import (
	"io"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
)

// lookAheads are shared by all connections: an idle one has none.
var lookAheads = sync.Pool{New: func() any { return new([lookAhead]byte) }}

func (x *tcpDatamover) takeBuf() {
	if x.buf == nil {
		x.lent = lookAheads.Get().(*[lookAhead]byte)
		x.buf = x.lent[:]
		x.r, x.w = 0, 0
	}
}

func (x *tcpDatamover) giveBuf() {
	if x.buf != nil {
		lookAheads.Put(x.lent)
		x.lent, x.buf, x.r, x.w = nil, nil, 0, 0
	}
}

// have is what lies in the look-ahead.
func (x *tcpDatamover) have() int { return x.w - x.r }

// fill makes at least n bytes lie contiguous in the look-ahead; n is at most its size.
func (x *tcpDatamover) fill(n int) error {
	for x.have() < n {
		x.want = n
		got, err := x.read()
		x.want = 0
		if err != nil {
			return err
		}
		x.w += got
	}
	return nil
}

// room names the free part of the look-ahead that a fill may use. While much data is expected that is no more than was
// asked for, so that the data finds its own place. tryRead asks at the moment of reading, because an R2T may have left
// meanwhile.
func (x *tcpDatamover) room() []byte {
	x.takeBuf()
	if x.r == x.w {
		x.r, x.w = 0, 0
	} else if len(x.buf)-x.r < x.want || x.r > len(x.buf)/2 {
		copy(x.buf, x.buf[x.r:x.w])
		x.r, x.w = 0, x.w-x.r
	}
	room := x.buf[x.w:]
	if x.bulk || x.c.bulkOut.Load() > 0 {
		room = room[:x.want-x.have()]
	}
	return room
}

// read receives into the look-ahead, for fill, or into riov; it lets output go first, since it may wait.
func (x *tcpDatamover) read() (int, error) {
	if x.corked {
		x.corked = false
		x.c.uncork()
	}
	if x.raw == nil {
		b := x.room
		if x.want == 0 {
			b = func() []byte { return unsafe.Slice(x.riov[0].Base, int(x.riov[0].Len)) }
		}
		n, err := x.nc.Read(b())
		if n > 0 {
			return n, nil
		}
		return 0, closedByPeer(err)
	}
	x.rn, x.rerr = 0, nil
	if err := x.raw.Read(x.readFn); err != nil {
		return 0, closedByPeer(err)
	}
	if x.rerr != nil {
		return 0, closedByPeer(x.rerr)
	}
	return x.rn, nil
}

// tryRead is one readv; the runtime calls it again when the socket is readable.
func (x *tcpDatamover) tryRead(fd uintptr) bool {
	if x.want > 0 {
		x.riov = sockio.Append(x.riov[:0], x.room())
	}
	n, e := sockio.Readv(fd, x.riov)
	switch {
	case e == unix.EAGAIN:
		if x.want > 0 && x.r == x.w {
			x.giveBuf() // nothing to keep while nothing comes
		}
		return false
	case e != 0:
		x.rerr = e
	case n == 0:
		x.rerr = io.EOF
	default:
		x.rn = n
	}
	return true
}

// pdu receives and handles one PDU.
func (x *tcpDatamover) pdu() error {
	c := x.c
	if err := x.fill(iscsi.BHSLen); err != nil {
		return err
	}
	if !x.corked {
		x.corked = true
		c.cork()
	}
	b := iscsi.BHS(x.header[:])
	copy(b, x.buf[x.r:])
	x.r += iscsi.BHSLen
	c.received.Add(1)
	c.hold()
	full, hd, dd := x.full, x.hd, x.dd
	c.letGo()

	ahs := b.AHSLen()
	n := ahs
	if hd {
		n += iscsi.DigestLen
	}
	if err := x.fill(n); err != nil {
		return err
	}
	copy(x.ahs[:], x.buf[x.r:x.r+ahs])
	if hd {
		d := iscsi.DigestUpdate(iscsi.Digest(b), x.ahs[:ahs])
		if iscsi.ReadDigest(x.buf[x.r+ahs:]) != d {
			// Section 7.8: after a wrong header digest nothing tells where the next PDU begins.
			return &iscsi.ProtocolError{Clause: "7.8", Reason: iscsi.RejectProtocol, Detail: "a header digest is wrong"}
		}
	}
	x.r += n

	dsl := b.DataLen()
	limit := iscsi.DefaultRecvData
	if full {
		limit = c.params.MaxRecv
	}
	if dsl > limit {
		return broken("13.12", iscsi.RejectProtocol, "a data segment of %d bytes, and MaxRecvDataSegmentLength is %d", dsl, limit)
	}
	tail := iscsi.Pad(dsl)
	if dd && dsl > 0 {
		tail += iscsi.DigestLen
	}
	if !full {
		if ahs > 0 {
			return broken("11.12", iscsi.RejectField, "additional headers in a login")
		}
		if err := x.fill(dsl + tail); err != nil {
			return err
		}
		data := x.buf[x.r : x.r+dsl]
		x.r += dsl + tail
		return c.loginPDU(b, data)
	}
	switch b.Opcode() {
	case iscsi.OpSCSICommand:
		x.bulk = dsl > copyBelow
		return x.command(b, x.ahs[:ahs], dsl, tail)
	case iscsi.OpDataOut:
		x.bulk = dsl > copyBelow
		t, err := c.beginData(b)
		if err != nil {
			return err
		}
		return x.data(t, b, int(b.Offset()), dsl, tail)
	}
	if dsl+tail > lookAhead {
		return broken("11", iscsi.RejectProtocol, "a %s with %d bytes of data", b.Opcode(), dsl)
	}
	if err := x.fill(dsl + tail); err != nil {
		return err
	}
	if err := x.checkSmall(b, dsl, tail); err != nil {
		return err
	}
	data := x.buf[x.r : x.r+dsl]
	x.r += dsl + tail
	return c.request(b, data)
}

// checkSmall verifies the data digest of a PDU that lies in the look-ahead.
func (x *tcpDatamover) checkSmall(b iscsi.BHS, dsl, tail int) error {
	if tail < iscsi.DigestLen || dsl == 0 {
		return nil
	}
	end := x.r + dsl + tail - iscsi.DigestLen
	if iscsi.Digest(x.buf[x.r:end]) == iscsi.ReadDigest(x.buf[end:]) {
		return nil
	}
	return &iscsi.ProtocolError{Clause: "7.8", Reason: iscsi.RejectDataDigest, Detail: "the data digest of a " + b.Opcode().String() + " is wrong"}
}

func (x *tcpDatamover) command(b iscsi.BHS, ahs []byte, dsl, tail int) error {
	c := x.c
	if dsl <= copyBelow {
		if err := x.fill(dsl + tail); err != nil {
			return err
		}
		// A command that is dropped leaves a hole in CmdSN, which nothing fills at ErrorRecoveryLevel 0: the session
		// ends.
		if err := x.checkSmall(b, dsl, tail); err != nil {
			return err
		}
		t, err := c.beginCommand(b, ahs, nil)
		if err != nil {
			return err
		}
		if t != nil {
			c.runTask(t, x.buf[x.r:x.r+dsl])
		}
		x.r += dsl + tail
		return nil
	}
	t, err := c.beginCommand(b, ahs, nil)
	if err != nil {
		return err
	}
	if t == nil {
		return x.data(nil, b, 0, dsl, tail)
	}
	c.hold()
	gen := t.gen
	if t.out.sequence == sequenceNone { // until endData: a response and an R2T wait for the rest of this PDU
		taskSequence.Move(&t.out.sequence, sequenceUnsolicited)
	}
	c.letGo()
	c.runTask(t, nil)
	c.hold()
	if t.gen == gen && t.state != taskFree {
		c.letGo()
		return x.dataOf(t, gen, b, 0, dsl, tail)
	}
	c.letGo()
	return x.data(nil, b, 0, dsl, tail)
}
