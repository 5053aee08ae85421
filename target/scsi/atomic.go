package scsi

import (
	"errors"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// beginCompareAndWrite is atomic because the device's CompareWrite is: for every request, of whatever session.
func beginCompareAndWrite(c *Command) stepResult {
	lu := c.x.lu
	r := rw{lba: be64(c.CDB[2:]), n: uint64(c.CDB[13]), fua: c.CDB[1]&8 != 0}
	if err := lu.inRange(r.lba, r.n); err != nil {
		return c.end(err)
	}
	if r.n == 0 && c.ExpectOut == 0 {
		return stepDone
	}
	if r.n == 0 || r.n > lu.maxCompareBlocks() {
		return c.end(badCDB(13))
	}
	n := int(r.n) << lu.shift
	return c.async(func(c *Command) error {
		if err := c.wholeData(int64(2 * n)); err != nil {
			return err
		}
		bufs, err := c.alloc(2 * n)
		if err != nil {
			return err
		}
		defer release(bufs)
		if err := c.moveOut(0, mem.Chain(nil, bufs, 0, 2*n)); err != nil {
			return err
		}
		return c.do(blockdev.Request{Op: blockdev.CompareWrite, Offset: int64(r.lba) << lu.shift, Length: int64(n),
			Compare: mem.Chain(nil, bufs, 0, n), Data: mem.Chain(nil, bufs, n, n), FUA: r.fua || lu.has(flagNoCache)})
	})
}

// maxCompareBlocks is MAXIMUM COMPARE AND WRITE LENGTH.
func (lu *LogicalUnit) maxCompareBlocks() uint64 { return min(uint64(maxCompare)>>lu.shift, 255) }

// beginOrWrite ORs the Data-Out buffer into the medium (SBC-3 section 5.8: no part of an ORWRITE within a block is
// seen). Each piece is a compare-and-write, which is repeated where another write came first, so no write is lost.
func beginOrWrite(c *Command) stepResult {
	want, err := c.setTransfer(parseRW(c.CDB), c.ExpectOut)
	if err != nil {
		return c.end(err)
	}
	c.TransferOut = want
	start, total, fua := c.x.tr.start, c.x.tr.move&^int64(c.x.lu.bs-1), c.x.tr.fua || c.x.lu.has(flagNoCache)
	return c.async(func(c *Command) error {
		for off := int64(0); off < total; {
			n := int(min(maxCompare, total-off))
			if err := c.orPiece(start, off, n, fua); err != nil {
				return err
			}
			off += int64(n)
		}
		return nil
	})
}

func (c *Command) orPiece(start, off int64, n int, fua bool) error {
	bufs, err := c.alloc(3 * n)
	if err != nil {
		return err
	}
	defer release(bufs)
	given, old, now := mem.Chain(nil, bufs, 0, n), mem.Chain(nil, bufs, n, n), mem.Chain(nil, bufs, 2*n, n)
	if err := c.moveOut(int(off), given); err != nil {
		return err
	}
	for {
		if err := c.do(blockdev.Request{Op: blockdev.Read, Offset: start + off, Length: int64(n), Data: old}); err != nil {
			return err
		}
		or := make([]byte, 0, n)
		for _, s := range given {
			or = append(or, s.Bytes()...)
		}
		i := 0
		for _, s := range old {
			for _, b := range s.Bytes() {
				or[i] |= b
				i++
			}
		}
		for _, s := range now {
			or = or[copy(s.Bytes(), or):]
		}
		err := c.do(blockdev.Request{Op: blockdev.CompareWrite, Offset: start + off, Length: int64(n), Compare: old, Data: now, FUA: fua})
		if !errors.Is(err, blockdev.ErrMiscompare) {
			return err
		}
	}
}

// atomicLimits are what WRITE ATOMIC may be given, in bytes: multiples of unit, aligned to it, up to most.
func (lu *LogicalUnit) atomicLimits() (unit, most int64) {
	g := lu.geo.Load()
	return int64(g.AtomicUnit), min(g.AtomicMax, maxAtomic)
}

func (lu *LogicalUnit) canWriteAtomic() bool {
	_, most := lu.atomicLimits()
	return most > 0
}

// beginWriteAtomic writes in one device request, or not at all (SBC-4 section 5.49).
func beginWriteAtomic(c *Command) stepResult {
	lu := c.x.lu
	r := rw{lba: be64(c.CDB[2:]), n: uint64(be16(c.CDB[12:])), fua: c.CDB[1]&8 != 0}
	if err := lu.inRange(r.lba, r.n); err != nil {
		return c.end(err)
	}
	unit, most := lu.atomicLimits()
	at, n := int64(r.lba)<<lu.shift, int64(r.n)<<lu.shift
	if n > most || n%unit != 0 {
		return c.end(badCDB(12))
	}
	if at%unit != 0 {
		return c.end(badCDB(2))
	}
	if n == 0 {
		return stepDone
	}
	return c.async(func(c *Command) error {
		if err := c.dataOut(n); err != nil {
			return err
		}
		bufs, err := c.alloc(int(n))
		if err != nil {
			return err
		}
		defer release(bufs)
		spans := mem.Chain(nil, bufs, 0, int(n))
		if err := c.moveOut(0, spans); err != nil {
			return err
		}
		return c.do(blockdev.Request{Op: blockdev.Write, Atomic: true, Offset: at, Length: n, Data: spans, FUA: r.fua || lu.has(flagNoCache)})
	})
}
