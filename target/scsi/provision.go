package scsi

import (
	"encoding/binary"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// zeroReads says that unmapped blocks read as zeroes (LBPRZ).
func (lu *LogicalUnit) zeroReads() bool {
	return lu.geo.Load().DiscardZeroes && lu.can(blockdev.WriteZeroes)
}

// deallocate returns a range's space. Where LBPRZ promises zeroes they are written, for a device may leave out parts of
// what Discard asks for; elsewhere zeroes would only take the space that the initiator gives back (SBC-3 section 4.7.3).
func (c *Command) deallocate(at, n int64) error {
	op := blockdev.WriteZeroes
	if !c.x.lu.zeroReads() {
		op = blockdev.Discard
	}
	most := n
	if m := c.x.lu.geo.Load().MaxDiscard; m > 0 {
		most = m
	}
	for n > 0 {
		k := min(n, most)
		if err := c.do(blockdev.Request{Op: op, Offset: at, Length: k, Unmap: true}); err != nil {
			return err
		}
		at, n = at+k, n-k
	}
	return nil
}

func beginUnmap(c *Command) stepResult {
	n := int(be16(c.CDB[7:]))
	if n == 0 {
		return stepDone
	}
	if n < 8 {
		return c.end(check(IllegalRequest, ASCParameterListLength))
	}
	return c.asyncParams(n, func(c *Command, list []byte) error {
		lu := c.x.lu
		// SBC-3 section 5.28.2: descriptors that are cut short are ignored.
		descs := list[8:]
		if d := int(be16(list[2:])); d < len(descs) {
			descs = descs[:d]
		}
		descs = descs[:len(descs)&^15]
		if len(descs)/16 > maxUnmapDescriptors {
			return badParam(2)
		}
		var total uint64
		for i := 0; i < len(descs); i += 16 {
			lba, n := be64(descs[i:]), uint64(be32(descs[i+8:]))
			if err := lu.inRange(lba, n); err != nil {
				return err
			}
			if total += n; total > lu.maxUnmapBlocks() {
				return badParam(8 + i + 8)
			}
		}
		for i := 0; i < len(descs); i += 16 {
			at, n := int64(be64(descs[i:]))<<lu.shift, int64(be32(descs[i+8:]))<<lu.shift
			if err := c.deallocate(at, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// beginWriteSame handles WRITE SAME(10), (16) and (32) (SBC-3 section 5.41).
func beginWriteSame(c *Command) stepResult {
	lu := c.x.lu
	r := parseRW(c.CDB)
	flags := c.CDB[1]
	if c.CDB[0] == byte(OpVariableLength) {
		flags = c.CDB[10]
	}
	unmap, ndob := flags&0x08 != 0, flags&0x01 != 0
	if c.CDB[0] == byte(OpWriteSame10) {
		ndob = false
	}
	if r.n == 0 {
		return c.end(badCDB(transferLengthField(c.CDB))) // WSNZ
	}
	if err := lu.inRange(r.lba, r.n); err != nil {
		return c.end(err)
	}
	if r.n > maxWriteSame>>lu.shift {
		return c.end(badCDB(transferLengthField(c.CDB)))
	}
	if unmap && !lu.canUnmap() {
		return c.end(badCDBBit(1, 3))
	}
	return c.async(func(c *Command) error {
		at, n := int64(r.lba)<<lu.shift, int64(r.n)<<lu.shift
		if ndob {
			return c.writeZeroes(at, n, unmap)
		}
		if err := c.wholeData(int64(lu.bs)); err != nil {
			return err
		}
		return c.writeSame(at, n, unmap)
	})
}

func (c *Command) writeSame(at, n int64, unmap bool) error {
	bs := int64(c.x.lu.bs)
	bufs, err := c.alloc(int(min(n, pieceSize)))
	if err != nil {
		return err
	}
	defer release(bufs)
	if err := c.moveOut(0, mem.Chain(nil, bufs, 0, int(bs))); err != nil {
		return err
	}
	block := make([]byte, 0, bs)
	zero := true
	for _, s := range mem.Chain(nil, bufs, 0, int(bs)) {
		block = append(block, s.Bytes()...)
	}
	for _, b := range block {
		zero = zero && b == 0
	}
	// Data that unmapped blocks would not read as is written even with UNMAP (SBC-3 section 5.41.2).
	if zero && (c.x.lu.zeroReads() || unmap) {
		return c.writeZeroes(at, n, unmap)
	}
	return c.repeat(at, n, block, mem.Chain(nil, bufs, 0, int(min(n, pieceSize))))
}

func (c *Command) writeZeroes(at, n int64, unmap bool) error {
	if c.x.lu.can(blockdev.WriteZeroes) {
		return c.do(blockdev.Request{Op: blockdev.WriteZeroes, Offset: at, Length: n, Unmap: unmap, FUA: c.x.lu.has(flagNoCache)})
	}
	size := min(n, pieceSize)
	bufs, err := c.alloc(int(size))
	if err != nil {
		return err
	}
	defer release(bufs)
	return c.repeat(at, n, make([]byte, c.x.lu.bs), mem.Chain(nil, bufs, 0, int(size)))
}

func beginGetLBAStatus(c *Command) stepResult {
	lu := c.x.lu
	lba := be64(c.CDB[2:])
	alloc := int(min(be32(c.CDB[10:]), maxParameter))
	if lba >= lu.blocks() {
		return c.end(&SenseError{Key: IllegalRequest, ASC: ASCLBAOutOfRange, HasInfo: true, Info: lba})
	}
	return c.async(func(c *Command) error {
		at := int64(lba) << lu.shift
		left := int64(lu.blocks()-lba) << lu.shift
		want := max((alloc-8)/16, 1)
		ext := make([]blockdev.Extent, 0, min(want, 256))
		if lu.can(blockdev.Status) && lu.canUnmap() {
			r := blockdev.Request{Op: blockdev.Status, Offset: at, Length: left, Extents: ext}
			if err := c.do(r); err != nil {
				return err
			}
			ext = c.x.tr.piece[0].req.Extents
		}
		if len(ext) == 0 {
			ext = append(ext, blockdev.Extent{Offset: at, Length: left, Mapped: true})
		}
		b := make([]byte, 8, 8+16*len(ext))
		for _, e := range ext {
			b = binary.BigEndian.AppendUint64(b, uint64(e.Offset)>>lu.shift)
			b = binary.BigEndian.AppendUint32(b, uint32(min(e.Length>>lu.shift, 0xFFFFFFFF)))
			status := byte(1)
			if e.Mapped {
				status = 0
			}
			b = append(b, status, 0, 0, 0)
			if e.Length>>lu.shift > 0xFFFFFFFF {
				break // the next descriptor would have to go on where this one cannot reach
			}
		}
		binary.BigEndian.PutUint32(b, uint32(len(b)-4))
		return c.reply(b, alloc)
	})
}
