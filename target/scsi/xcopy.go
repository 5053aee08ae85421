package scsi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Bounds of EXTENDED COPY, as RECEIVE COPY OPERATING PARAMETERS reports them.
const (
	maxCopyTargets      = 16
	maxCopySegments     = 64
	maxCopySegment      = 64 << 20 // bytes of one segment
	maxCopyList         = 16 + 32*maxCopyTargets + 28*maxCopySegments
	maxRememberedCopies = 16 // finished copies of one nexus that can still be asked about
	cscdIdentification  = 0xE4
	segmentBlockBlock   = 0x02
)

// copyRecord is what RECEIVE COPY STATUS tells of a finished copy.
type copyRecord struct {
	id       byte
	segments int
	bytes    int64
	failed   Status      // of the command; StatusGood where it copied everything
	why      *SenseError // with CHECK CONDITION
}

// fail notes how a copy ends that did not copy everything: also one that was aborted, or that met a reservation.
func (r *copyRecord) fail(err error) {
	var st statusError
	switch {
	case errors.As(err, &r.why):
		r.failed = StatusCheckCondition
	case errors.As(err, &st):
		r.failed = Status(st)
	default:
		r.failed = StatusTaskAborted
	}
}

type copyTarget struct {
	itl *itl
}

type copySegment struct {
	src, dst       int
	srcLBA, dstLBA uint64
	blocks         uint64
	dc             bool
}

// beginExtendedCopy is EXTENDED COPY(LID1) (SPC-4 section 6.4) between logical units of this target.
func beginExtendedCopy(c *Command) stepResult {
	n := be32(c.CDB[10:])
	if n == 0 {
		return stepDone
	}
	if n < 16 || n > maxCopyList {
		return c.end(check(IllegalRequest, ASCParameterListLength))
	}
	return c.asyncParams(int(n), func(c *Command, list []byte) error {
		targets, segs, err := c.parseCopy(list)
		if err != nil {
			return err
		}
		if err := c.visit(targets); err != nil {
			return err
		}
		defer c.leaveUnits()
		rec := copyRecord{id: list[0]}
		for k, s := range segs {
			n, err := c.copySegment(targets, s)
			rec.bytes += n
			if err != nil {
				err = copyAborted(err, k)
				rec.fail(err)
				c.remember(rec, list[1])
				return err
			}
			rec.segments++
		}
		c.remember(rec, list[1])
		return nil
	})
}

// copyAborted wraps what stopped a segment; its number is the command-specific information (SPC-4 section 6.4.3.3).
func copyAborted(err error, segment int) error {
	var s *SenseError
	if !errors.As(err, &s) {
		return err
	}
	e := *s
	e.Key, e.FieldValid, e.Specific = CopyAborted, false, uint64(segment)
	switch {
	case s.Key == MediumError || s.Key == HardwareError:
		e.ASC = ASCThirdPartyDeviceFailure
	case s.ASC == ASCLBAOutOfRange:
		e.ASC = ASCNone // the segment descriptor is at fault, which Specific tells
	}
	return &e
}

func (c *Command) remember(r copyRecord, flags byte) {
	if flags>>3&3 == 3 {
		return // LIST ID USAGE 11b: it is not asked for
	}
	i := c.x.itl
	i.mu.Lock()
	defer i.mu.Unlock()
	for k := range i.copies {
		if i.copies[k].id == r.id {
			i.copies[k] = r
			return
		}
	}
	if len(i.copies) == maxRememberedCopies {
		i.copies = i.copies[1:]
	}
	i.copies = append(i.copies, r)
}

func (c *Command) parseCopy(list []byte) ([]copyTarget, []copySegment, error) {
	tlen, slen, inline := int(be16(list[2:])), int(be32(list[8:])), int(be32(list[12:]))
	if list[1]>>3&3 == 1 {
		return nil, nil, badParam(1)
	}
	if inline != 0 {
		return nil, nil, check(IllegalRequest, ASCInlineDataLength)
	}
	if tlen%32 != 0 || slen < 0 {
		return nil, nil, check(IllegalRequest, ASCParameterListLength)
	}
	if tlen/32 > maxCopyTargets {
		return nil, nil, check(IllegalRequest, ASCTooManyTargetDescriptors)
	}
	if slen > 28*maxCopySegments {
		return nil, nil, check(IllegalRequest, ASCTooManySegmentDescriptors)
	}
	if len(list) < 16+tlen+slen {
		return nil, nil, check(IllegalRequest, ASCParameterListLength)
	}
	var targets []copyTarget
	for off := 16; off < 16+tlen; off += 32 {
		t, err := c.parseCopyTarget(list[off:off+32], off)
		if err != nil {
			return nil, nil, err
		}
		targets = append(targets, t)
	}
	var segs []copySegment
	for off := 16 + tlen; off < 16+tlen+slen; {
		s, n, err := parseCopySegment(list[off:16+tlen+slen], off, len(targets))
		if err != nil {
			return nil, nil, err
		}
		segs = append(segs, s)
		off += n
	}
	return targets, segs, nil
}

// parseCopyTarget finds the unit that an identification descriptor names (SPC-4 section 6.4.5.3).
func (c *Command) parseCopyTarget(d []byte, off int) (copyTarget, error) {
	if d[0] != cscdIdentification {
		return copyTarget{}, &SenseError{Key: IllegalRequest, ASC: ASCUnsupportedTargetDesc, FieldValid: true, Field: uint16(off)}
	}
	if d[1]&0x1F != 0 {
		return copyTarget{}, &SenseError{Key: IllegalRequest, ASC: ASCUnsupportedTargetDesc, FieldValid: true, Field: uint16(off + 1)}
	}
	if d[1]&0x20 != 0 {
		// NUL: nothing there to copy from or to. LU ID TYPE means nothing in this descriptor.
		return copyTarget{}, check(CopyAborted, ASCUnreachableCopyTarget)
	}
	n := int(d[7])
	if n > 20 {
		return copyTarget{}, badParam(off + 7)
	}
	if d[5]>>4&3 != 0 {
		return copyTarget{}, &SenseError{Key: CopyAborted, ASC: ASCUnreachableCopyTarget}
	}
	codeSet, kind, id := d[4]&0x0F, d[5]&0x0F, d[8:8+n]
	var found *itl
	for _, i := range *c.Nexus.luns.Load() {
		if !i.lu.designated(codeSet, kind, id) {
			continue
		}
		if found != nil && found.lu != i.lu {
			// A T10 designator of which the descriptor has the beginning only can be that of several units.
			return copyTarget{}, &SenseError{Key: CopyAborted, ASC: ASCCopyTargetUnreachable}
		}
		found = i
	}
	if found == nil {
		return copyTarget{}, &SenseError{Key: CopyAborted, ASC: ASCCopyTargetUnreachable}
	}
	if bs := be24(d[29:32]); bs != 0 && bs != found.lu.bs {
		return copyTarget{}, &SenseError{Key: CopyAborted, ASC: ASCIncorrectCopyTarget}
	}
	return copyTarget{itl: found}, nil
}

func be24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// designated reports whether a designator is one of the unit's.
func (lu *LogicalUnit) designated(codeSet, kind byte, id []byte) bool {
	switch {
	case kind == 3 && codeSet == 1:
		return bytes.Equal(id, lu.naa)
	case kind == 2 && codeSet == 1:
		return bytes.Equal(id, lu.eui)
	case kind == 1:
		t10 := append(padded(nil, lu.opt.Vendor, 8), lu.serial...)
		return len(id) > 8 && bytes.HasPrefix(t10, id) && (len(id) == 20 || len(id) == len(t10))
	}
	return false
}

func parseCopySegment(d []byte, off, targets int) (s copySegment, n int, err error) {
	if d[0] != segmentBlockBlock {
		return s, 0, &SenseError{Key: IllegalRequest, ASC: ASCUnsupportedSegmentDesc, FieldValid: true, Field: uint16(off)}
	}
	if len(d) < 28 {
		return s, 0, check(IllegalRequest, ASCParameterListLength)
	}
	if be16(d[2:]) != 0x18 {
		return s, 0, badParam(off + 2)
	}
	s = copySegment{src: int(be16(d[4:])), dst: int(be16(d[6:])), blocks: uint64(be16(d[10:])),
		srcLBA: be64(d[12:]), dstLBA: be64(d[20:]), dc: d[1]&2 != 0}
	if s.src >= targets || s.dst >= targets {
		return s, 0, check(CopyAborted, ASCUnreachableCopyTarget)
	}
	return s, 28, nil
}

// copySegment copies one segment. The initiator's rights are checked at both ends, as if it had read and written itself.
func (c *Command) copySegment(targets []copyTarget, s copySegment) (int64, error) {
	src, dst := targets[s.src].itl, targets[s.dst].itl
	unit := src.lu
	if s.dc {
		unit = dst.lu // DC: the count is in blocks of the destination
	}
	n := int64(s.blocks) << unit.shift
	if n > maxCopySegment || n%int64(src.lu.bs) != 0 || n%int64(dst.lu.bs) != 0 {
		return 0, badParam(10)
	}
	if err := src.lu.inRange(s.srcLBA, uint64(n)>>src.lu.shift); err != nil {
		return 0, err
	}
	if err := dst.lu.inRange(s.dstLBA, uint64(n)>>dst.lu.shift); err != nil {
		return 0, err
	}
	if err := mayCopy(src, dst); err != nil {
		return 0, err
	}
	return c.copyBytes(src, dst, int64(s.srcLBA)<<src.lu.shift, int64(s.dstLBA)<<dst.lu.shift, n)
}

// mayCopy checks both ends, before each step: a copy takes long, and a reservation that another nexus makes meanwhile binds
// what comes after it.
func mayCopy(src, dst *itl) error {
	if src.excluded(conflictReads) || dst.excluded(conflictWrites) {
		return statusError(StatusReservationConflict)
	}
	if dst.lu.readOnly() || dst.lu.has(flagSWP) {
		return check(DataProtect, ASCWriteProtected)
	}
	for _, lu := range [...]*LogicalUnit{src.lu, dst.lu} {
		f := lu.flags.Load()
		if f&flagsNotReady != 0 {
			return lu.notReady(f)
		}
		if err := unerased(f); err != nil {
			return err
		}
	}
	return nil
}

// excluded reports whether a reservation keeps the nexus from a class of commands.
func (i *itl) excluded(class conflict) bool {
	if h := i.lu.spc2.Load(); h != nil && h != i {
		return true
	}
	r := i.lu.pr.Load()
	return r.Type != 0 && r.conflicts(i.id, class)
}

func (c *Command) copyBytes(a, b *itl, from, to, n int64) (done int64, err error) {
	src, dst := a.lu, b.lu
	overlap := src == dst && from < to+n && to < from+n
	if rc, ok := src.dev.(blockdev.RangeCopier); ok && !overlap {
		if done, err = c.copyRange(rc, a, b, from, to, n); err != nil || done == n {
			return done, err
		}
	}
	step := int64(maxBufCopy)
	bufs, err := c.alloc(int(min(step, max(n-done, int64(max(src.bs, dst.bs))))))
	if err != nil {
		return done, err
	}
	defer release(bufs)
	for done < n {
		k := min(step, n-done)
		off := done
		if overlap && from < to {
			off = n - done - k // backwards, so that nothing is overwritten before it is read
		}
		spans := mem.Chain(nil, bufs, 0, int(k))
		if err := mayCopy(a, b); err != nil {
			return done, err
		}
		if err := c.doOn(src, blockdev.Request{Op: blockdev.Read, Offset: from + off, Length: k, Data: spans}); err != nil {
			return done, err
		}
		if err := c.doOn(dst, blockdev.Request{Op: blockdev.Write, Offset: to + off, Length: k, Data: spans, FUA: dst.has(flagNoCache)}); err != nil {
			return done, err
		}
		done += k
	}
	return done, nil
}

const maxBufCopy = 1 << 20

// copyRange has the devices copy. What is left without an error they cannot.
func (c *Command) copyRange(rc blockdev.RangeCopier, a, b *itl, from, to, n int64) (done int64, err error) {
	dst := b.lu
	for done < n {
		if c.stopping() {
			return done, c.x.err
		}
		if err := mayCopy(a, b); err != nil {
			return done, err
		}
		k, err := rc.CopyRange(dst.dev, from+done, to+done, min(rangeCopyStep, n-done))
		done += k
		if errors.Is(err, blockdev.ErrUnsupported) || err == nil && k == 0 {
			break
		}
		if err != nil {
			return done, ofDevice(blockdev.Write, err, dst.lba(to+done))
		}
	}
	if done > 0 && dst.has(flagNoCache) {
		return done, c.doOn(dst, blockdev.Request{Op: blockdev.Flush})
	}
	return done, nil
}

// rangeCopyStep is how much one CopyRange does, so that an abort is noticed between two.
const rangeCopyStep = 16 << 20

// beginCopyResults is RECEIVE COPY RESULTS and its kin (SPC-4 sections 6.24 to 6.26).
func beginCopyResults(c *Command) stepResult {
	alloc := int(be32(c.CDB[10:]))
	sa := c.CDB[1] & 0x1F
	if sa == saCopyParameters {
		return c.send(copyParameters(c.scratch()), alloc)
	}
	i := c.x.itl
	i.mu.Lock()
	k := slices.IndexFunc(i.copies, func(r copyRecord) bool { return r.id == c.CDB[2] })
	var r copyRecord
	if k >= 0 {
		r = i.copies[k]
	}
	i.mu.Unlock() // before the move, which can wait for memory and for the initiator
	switch {
	case k < 0:
		return c.end(badCDB(2)) // SPC-4: no copy with that list identifier
	case sa == saCopyStatus:
		return c.send(r.status(c.scratch()), alloc)
	}
	return c.send(r.failure(c.scratch()), alloc)
}

func (r copyRecord) status(b []byte) []byte {
	state := byte(1) // completed without errors
	if r.failed != StatusGood {
		state = 2
	}
	b = append(b, 0, 0, 0, 8, state)
	b = binary.BigEndian.AppendUint16(b, uint16(r.segments))
	return appendBE(append(b, 1), uint64(r.bytes>>10), 4) // in KiB
}

func (r copyRecord) failure(b []byte) []byte {
	b = append(b, make([]byte, 60)...)
	b[56] = byte(r.failed)
	if r.why != nil {
		s := r.why.append(nil, false)
		binary.BigEndian.PutUint16(b[58:], uint16(len(s)))
		b = append(b, s...)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func copyParameters(b []byte) []byte {
	b = append(b, make([]byte, 44)...)
	b[4] = 1 // SNLID
	binary.BigEndian.PutUint16(b[8:], maxCopyTargets)
	binary.BigEndian.PutUint16(b[10:], maxCopySegments)
	binary.BigEndian.PutUint32(b[12:], 32*maxCopyTargets+28*maxCopySegments)
	binary.BigEndian.PutUint32(b[16:], maxCopySegment)
	binary.BigEndian.PutUint16(b[34:], 255) // total concurrent copies
	b[36] = 255
	b[37] = 9 // data segment granularity: 512 bytes
	b = append(b, segmentBlockBlock, cscdIdentification)
	b[43] = 2
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// vpdThirdPartyCopy is VPD 8Fh: the commands, the descriptors and the limits of EXTENDED COPY (SPC-4 section 7.8.17).
func vpdThirdPartyCopy(_ *Command, b []byte) []byte {
	desc := func(kind uint16, data []byte) {
		for len(data)%4 != 0 {
			data = append(data, 0)
		}
		b = binary.BigEndian.AppendUint16(b, kind)
		b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
		b = append(b, data...)
	}
	// Supported commands: EXTENDED COPY(LID1); RECEIVE COPY STATUS, PARAMETERS, FAILURE DETAILS.
	desc(0x0001, []byte{9, byte(OpExtendedCopy), 1, saExtendedCopyLID1, byte(OpReceiveCopyResults), 3, saCopyStatus, saCopyParameters, saCopyFailed, 0})
	p := make([]byte, 28)
	binary.BigEndian.PutUint16(p[4:], maxCopyTargets)
	binary.BigEndian.PutUint16(p[6:], maxCopySegments)
	binary.BigEndian.PutUint32(p[8:], 32*maxCopyTargets+28*maxCopySegments)
	desc(0x0004, p) // parameter data
	desc(0x0008, []byte{2, segmentBlockBlock, cscdIdentification})
	desc(0x8001, func() []byte { // general copy operations
		g := make([]byte, 32)
		binary.BigEndian.PutUint32(g[0:], 255)
		binary.BigEndian.PutUint32(g[4:], 255)
		binary.BigEndian.PutUint32(g[8:], maxCopySegment)
		g[12] = 9
		return g
	}())
	return b
}
