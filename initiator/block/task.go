package block

import (
	"encoding/binary"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// task is one command slot of a session.
type task struct {
	itt     uint32
	idx     int
	gen     uint32
	life    taskLife
	req     *request
	n       int64 // bytes of the request that this command stands for
	edtl    int64
	in, out bool
	spans   []mem.Span
	cdb     []byte // up to 16 bytes in short, or the request's own
	short   [16]byte
	slot    mem.Span // header and scratch memory
	cmdSN   uint32

	err      error // with taskAnswered: why it failed
	abort    abortion
	why      abortReason
	abortITT uint32 // of the abort that was sent, 0 for none
	aborted  int    // beat of the watchdog at which the abort was sent
	beat     int    // the same of the command

	// iSER
	win   transport.Window
	bound bool // the STag may be alive
	stag  uint32
	local []mem.Span
	imm   int // immediate bytes, TCP as well
	// sendNo is the number of the Send that carries immediate data. With lent the fabric may still read that: the task is
	// not over, whatever the target answers.
	sendNo uint64
	lent   bool

	rcvd int64 // bytes of Data-In that have come; over iSER what the target says of it is all that is known, and all of it counts

	// TCP
	queued int    // PDUs in the transmit queue that name this task
	dataSN uint32 // expected of Data-In
	r2tSN  uint32
}

func (t *task) scratch() mem.Span { return t.slot.Cut(scratchOff, scratchSize) }

const (
	taskIndexBits = 12
	ittControl    = 0xe0000000 // tags of control PDUs: kind in bits 24..27, index below
)

// SCSI operation codes (SBC-4, SPC-4).
const (
	opTestUnitReady   = 0x00
	opInquiry         = 0x12
	opModeSense6      = 0x1a
	opReadCapacity10  = 0x25
	opUnmap           = 0x42
	opRead16          = 0x88
	opCompareAndWrite = 0x89
	opWrite16         = 0x8a
	opSyncCache16     = 0x91
	opWriteSame16     = 0x93
	opServiceIn16     = 0x9e
	opReportLUNs      = 0xa0
	opMaintenanceIn   = 0xa3
)

const (
	saReadCapacity16 = 0x10
	saGetLBAStatus   = 0x12
	fuaBit           = 0x08
)

// renew makes the slot ready for a command of r.
func (t *task) renew(r *request) {
	t.req, t.err, t.abortITT, t.aborted, t.n, t.imm = r, nil, 0, 0, 0, 0
	if t.abort != abortNone {
		abortions.Move(&t.abort, abortNone)
	}
	t.why = abortCancelled
	t.in, t.out, t.rcvd, t.dataSN, t.r2tSN = false, false, 0, 0, 0
	t.edtl = 0 // LIO rejects a command that moves nothing and expects something
	t.spans = t.spans[:0]
	clear(t.short[:])
	t.cdb = t.short[:]
}

// build makes the next command of r, and says whether it is the last. ok is false when the request's memory is in too many
// pieces for one block.
func (t *task) build(r *request, l *limits, maxSGE int, zero mem.Span) (last, ok bool) {
	t.renew(r)
	lba := uint64(0)
	if l.block > 0 {
		lba = uint64((r.Offset + r.issued) / l.block)
	}
	ok = true
	switch {
	case r.Op == blockdev.Flush || r.step == stepFlush:
		t.cdb[0] = opSyncCache16
		return true, true
	case r.Op == blockdev.Read || r.Op == blockdev.Write:
		ok = t.transfer(r, l, maxSGE, lba)
	case r.Op == blockdev.Discard:
		t.unmap(r, l, lba)
	case r.Op == blockdev.WriteZeroes && l.noWriteSame:
		t.writeZeroes(r, l, maxSGE, lba, zero)
	case r.Op == blockdev.WriteZeroes:
		t.writeSame(r, l, lba, zero)
	case r.Op == blockdev.CompareWrite:
		ok = t.compareAndWrite(r, l, maxSGE, lba)
	case r.Op == blockdev.Status:
		t.lbaStatus(r, lba)
	case r.Op == rawCommand:
		ok = t.raw(r, maxSGE)
	}
	if !ok {
		return false, false
	}
	t.account(r)
	return r.issued == r.Length || r.Op == blockdev.Status || r.Op == rawCommand, true
}

// put16 fills a CDB of 16 bytes in the usual form.
func (t *task) put16(op uint8, lba uint64, blocks int64) {
	t.cdb[0] = op
	binary.BigEndian.PutUint64(t.cdb[2:], lba)
	binary.BigEndian.PutUint32(t.cdb[10:], uint32(blocks))
}

func (t *task) putFUA(r *request) {
	if r.FUA {
		t.cdb[1] |= fuaBit
	}
}

func (t *task) transfer(r *request, l *limits, maxSGE int, lba uint64) bool {
	op := uint8(opRead16)
	if t.in, t.out = r.Op == blockdev.Read, r.Op == blockdev.Write; t.out {
		op = opWrite16
	}
	if t.n = t.cut(r, l, maxSGE); t.n == 0 {
		return false
	}
	t.put16(op, lba, t.n/l.block)
	if t.out {
		t.putFUA(r)
	}
	return true
}

// unmap is UNMAP with one descriptor (SBC-3 section 5.28).
func (t *task) unmap(r *request, l *limits, lba uint64) {
	t.n = min(r.Length-r.issued, max(l.maxUnmap, l.block), 0xffffffff*l.block)
	b := t.scratch().Cut(0, 24)
	p := b.Bytes()
	clear(p)
	binary.BigEndian.PutUint16(p, 22)
	binary.BigEndian.PutUint16(p[2:], 16)
	binary.BigEndian.PutUint64(p[8:], lba)
	binary.BigEndian.PutUint32(p[16:], uint32(t.n/l.block))
	t.spans, t.out = append(t.spans, b), true
	t.cdb[0] = opUnmap
	binary.BigEndian.PutUint16(t.cdb[7:], 24)
}

// writeZeroes writes zeroes as data, to a target that has no WRITE SAME.
func (t *task) writeZeroes(r *request, l *limits, maxSGE int, lba uint64, zero mem.Span) {
	t.out = true
	most := int64(zero.Len) * int64(maxSGE)
	for left := min(r.Length-r.issued, l.piece, most/l.block*l.block); left > 0; {
		k := min(left, int64(zero.Len))
		t.spans = append(t.spans, zero.Cut(0, int(k)))
		t.n, left = t.n+k, left-k
	}
	t.put16(opWrite16, lba, t.n/l.block)
	t.putFUA(r)
}

func (t *task) writeSame(r *request, l *limits, lba uint64, zero mem.Span) {
	t.out = true
	t.n = min(r.Length-r.issued, l.maxWriteSame, 0xffffffff*l.block)
	t.spans = append(t.spans, zero.Cut(0, int(l.block)))
	t.put16(opWriteSame16, lba, t.n/l.block)
	if r.Unmap && l.unmapSame {
		t.cdb[1] |= 0x08
	}
}

func (t *task) compareAndWrite(r *request, l *limits, maxSGE int, lba uint64) bool {
	t.out, t.n = true, r.Length
	for _, s := range r.Compare {
		t.spans = mem.Join(t.spans, s)
	}
	for _, s := range r.Data {
		t.spans = mem.Join(t.spans, s)
	}
	if len(t.spans) > maxSGE {
		return false
	}
	t.put16(opCompareAndWrite, lba, 0)
	t.cdb[13] = uint8(t.n / l.block)
	t.putFUA(r)
	return true
}

func (t *task) lbaStatus(r *request, lba uint64) {
	t.in = true
	n := min(8+16*cap(r.Extents), scratchSize)
	t.spans = append(t.spans, t.scratch().Cut(0, n))
	t.put16(opServiceIn16, lba, int64(n))
	t.cdb[1] = saGetLBAStatus
}

func (t *task) raw(r *request, maxSGE int) bool {
	t.cdb = r.cdb
	for _, s := range r.Data {
		t.spans = mem.Join(t.spans, s)
	}
	t.in, t.out = r.in && len(r.Data) > 0, !r.in && len(r.Data) > 0
	return len(t.spans) <= maxSGE
}

func (t *task) account(r *request) {
	r.issued += t.n
	t.edtl = mem.Total(t.spans)
}

// cut takes the memory of the next piece from r: as much as a command may move, in whole blocks.
func (t *task) cut(r *request, l *limits, maxSGE int) int64 {
	want := min(r.Length-r.issued, l.piece)
	span, off, n := r.span, r.spanOff, int64(0)
	for n < want && len(t.spans) < maxSGE {
		s := r.Data[span]
		k := min(int64(s.Len-off), want-n)
		if k > 0 {
			t.spans = mem.Join(t.spans, s.Cut(off, int(k)))
			n += k
		}
		if off += int(k); off == s.Len {
			span, off = span+1, 0
		}
	}
	for over := n % l.block; over > 0; { // give back what is no whole block
		last := &t.spans[len(t.spans)-1]
		k := min(int64(last.Len), over)
		if last.Len -= int(k); last.Len == 0 {
			t.spans = t.spans[:len(t.spans)-1]
		}
		for back := int(k); back > 0; {
			if off == 0 {
				span--
				off = r.Data[span].Len
			}
			step := min(off, back)
			off -= step
			back -= step
		}
		n -= k
		over -= k
	}
	r.span, r.spanOff = span, off
	return n
}

// statusLocked reads the answer of GET LBA STATUS (SBC-4 section 5.8.3).
func (t *task) status(r *request, moved int64, l *limits) {
	p := t.scratch().Bytes()[:moved]
	if len(p) < 8 {
		return
	}
	end := min(int(binary.BigEndian.Uint32(p))+4, len(p))
	at := r.Offset
	for d := 8; d+16 <= end && len(r.Extents) < cap(r.Extents) && at < r.Offset+r.Length; d += 16 {
		lba := binary.BigEndian.Uint64(p[d:])
		e := blockdev.Extent{Offset: at, Mapped: p[d+12]&0x0f == 0}
		stop := int64(lba+uint64(binary.BigEndian.Uint32(p[d+8:]))) * l.block
		if stop <= at {
			return
		}
		e.Length = min(stop, r.Offset+r.Length) - at
		at += e.Length
		r.Extents = append(r.Extents, e)
	}
}

// command fills the iSCSI header and the additional headers, and returns their length.
func (t *task) command(b []byte, lun uint64, expStatSN uint32, imm int) int {
	c := iscsi.SCSICommand{Final: true, Read: t.in, Write: t.out, Attr: iscsi.Simple, DataLen: imm, LUN: lun, ITT: t.itt,
		EDTL: uint32(t.edtl), CmdSN: t.cmdSN, ExpStatSN: expStatSN}
	n := copy(c.CDB[:], t.cdb)
	c.Put(b)
	if n == len(t.cdb) {
		return iscsi.BHSLen
	}
	ahs := iscsi.AppendExtendedCDB(b[iscsi.BHSLen:iscsi.BHSLen], t.cdb)
	iscsi.BHS(b).SetAHSLen(len(ahs))
	return iscsi.BHSLen + len(ahs)
}
