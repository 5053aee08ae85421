package iscsi

import (
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/internal/sockio"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/scsi"
)

// data receives a data segment of n bytes that belongs pos bytes into the Data-Out buffer of t, or nowhere.
func (x *tcpDatamover) data(t *task, b iscsi.BHS, pos, n, tail int) error {
	var gen uint16
	if t != nil {
		x.c.hold()
		gen = t.gen
		x.c.letGo()
	}
	return x.dataOf(t, gen, b, pos, n, tail)
}

// segment is what is left of a data segment that is being received. It is for t as long as that is of generation gen.
type segment struct {
	t      *task
	gen    uint16
	pos    int // into the Data-Out buffer
	left   int
	tail   int // padding and digest behind it
	digest bool
	crc    uint32
}

func (s *segment) count(b []byte) {
	if s.digest {
		s.crc = iscsi.DigestUpdate(s.crc, b)
	}
}

// dataOf is data for a use of a task that the caller knows.
func (x *tcpDatamover) dataOf(t *task, gen uint16, b iscsi.BHS, pos, n, tail int) error {
	c := x.c
	s := segment{t: t, gen: gen, pos: pos, left: n, tail: tail, digest: tail >= iscsi.DigestLen && n > 0}
	if b.Opcode() == iscsi.OpSCSICommand && t != nil {
		c.hold()
		c.stats.bytesIn += uint64(n)
		c.letGo()
	}
	for s.left > 0 {
		m, err := x.dataPart(&s)
		if err != nil {
			return err
		}
		s.pos, s.left = s.pos+m, s.left-m
	}
	bad, err := x.dataTail(&s, b)
	if err != nil {
		return err
	}
	c.endData(t, gen, b, bad)
	return nil
}

// dataPart receives a part of a segment to where it belongs at this moment, and returns its length: 0 where it has to be
// asked once more.
func (x *tcpDatamover) dataPart(s *segment) (int, error) {
	c, t := x.c, s.t
	c.hold()
	kind, m := c.destLocked(t, s.gen, s.pos, s.left)
	switch kind {
	case toSpans:
		spans, at := t.out.data, t.out.have
		c.letGo()
		return m, x.dataInPlace(s, spans, at, m)
	case toStash:
		if x.have() == 0 {
			c.letGo()
			return 0, x.fill(min(m, copyBelow)) // the request may have come meanwhile
		}
		m = min(m, x.have())
		c.parkLocked(t, x.buf[x.r:x.r+m], s.pos)
		c.letGo()
	default:
		c.letGo()
		if x.have() == 0 {
			// It is dropped, so it may come in large pieces.
			if err := x.fill(min(m, lookAhead)); err != nil {
				return 0, err
			}
		}
		m = min(m, x.have())
	}
	s.count(x.buf[x.r : x.r+m])
	x.r += m
	return m, nil
}

// dataInPlace receives m bytes of a segment into the spans of its task's move, which destLocked has kept from ending.
func (x *tcpDatamover) dataInPlace(s *segment, spans []mem.Span, at, m int) error {
	c := x.c
	err := x.place(spans, at, m, s.tail, m == s.left)
	if err != nil {
		c.hold()
		s.t.placedLocked()
		c.letGo()
		return err
	}
	if s.digest {
		s.crc = digestSpans(s.crc, spans, at, m)
	}
	c.hold()
	s.t.out.have += m
	c.placed.Add(1)
	c.letGo()
	return nil
}

// dataTail receives padding and digest of a segment. bad is what fails its task.
func (x *tcpDatamover) dataTail(s *segment, b iscsi.BHS) (bad, err error) {
	if err := x.fill(s.tail); err != nil {
		return nil, err
	}
	if s.digest {
		pad := s.tail - iscsi.DigestLen
		s.count(x.buf[x.r : x.r+pad])
		if s.crc != iscsi.ReadDigest(x.buf[x.r+pad:]) {
			x.c.reject(b, iscsi.RejectDataDigest)
			bad = dataFault(scsi.ASCProtocolCRC, &iscsi.ProtocolError{Clause: "7.8", Reason: iscsi.RejectDataDigest, Detail: "a data digest is wrong"})
		}
	}
	x.r += s.tail
	return bad, nil
}

// place receives n bytes into spans from at on. What lies in the look-ahead is copied. The rest comes by readv straight
// to its place, with the tail and the next header behind it.
func (x *tcpDatamover) place(spans []mem.Span, at, n, tail int, last bool) error {
	if k := min(n, x.have()); k > 0 {
		mem.Scatter(spans, int64(at), x.buf[x.r:x.r+k])
		x.r, at, n = x.r+k, at+k, n-k
		x.c.hold()
		x.c.stats.copied += uint64(k)
		x.c.letGo()
	}
	for n > 0 {
		x.riov = x.riov[:0]
		left := n
		for c := mem.At(spans, int64(at)); left > 0 && len(x.riov) < maxIOV; {
			s := c.Next(left)
			if len(s) == 0 {
				break
			}
			left -= len(s)
			x.riov = sockio.Append(x.riov, s)
		}
		if last && left == 0 {
			x.takeBuf()
			x.r, x.w = 0, 0
			room := x.buf
			if x.bulk || x.c.bulkOut.Load() > 0 {
				room = room[:tail+iscsi.BHSLen]
			}
			x.riov = sockio.Append(x.riov, room)
		}
		got, err := x.read()
		if err != nil {
			return err
		}
		x.c.placed.Add(1)
		mine := min(got, n)
		at, n = at+mine, n-mine
		if got > mine {
			x.w = got - mine
		}
	}
	return nil
}

func digestSpans(crc uint32, spans []mem.Span, at, n int) uint32 {
	for c := mem.At(spans, int64(at)); n > 0; {
		s := c.Next(n)
		if len(s) == 0 {
			break
		}
		n -= len(s)
		crc = iscsi.DigestUpdate(crc, s)
	}
	return crc
}
