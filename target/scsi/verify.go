package scsi

import (
	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// byteCheck is the BYTCHK field (SBC-3 table 88).
func byteCheck(cdb []byte) byte { return cdb[1] >> 1 & 3 }

func beginVerify(c *Command) stepResult {
	r := parseRW(c.CDB)
	lu := c.x.lu
	if err := lu.inRange(r.lba, r.n); err != nil {
		return c.end(err)
	}
	mode := byteCheck(c.CDB)
	switch mode {
	case 2:
		return c.end(badCDBBit(1, 2))
	case 1, 3:
		if r.n > maxTransfer>>lu.shift {
			return c.end(badCDB(transferLengthField(c.CDB)))
		}
	}
	if r.n == 0 {
		return stepDone
	}
	return c.async(func(c *Command) error {
		if mode == 3 {
			return c.verifyOne(r)
		}
		return c.verify(r, mode == 1)
	})
}

// verify reads a range and, with compare, compares it with the Data-Out buffer.
func (c *Command) verify(r rw, compare bool) error {
	lu := c.x.lu
	total := int64(r.n) << lu.shift
	if compare {
		if err := c.dataOut(total); err != nil {
			return err
		}
	}
	for off := int64(0); off < total; {
		n := int(min(pieceSize, total-off))
		if err := c.verifyPiece(int64(r.lba)<<lu.shift+off, off, n, compare); err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

func (c *Command) verifyPiece(at, off int64, n int, compare bool) error {
	need := n
	if compare {
		need = 2 * n
	}
	bufs, err := c.alloc(need)
	if err != nil {
		return err
	}
	defer release(bufs)
	medium := mem.Chain(nil, bufs, 0, n)
	var given []mem.Span
	if compare {
		given = mem.Chain(nil, bufs, n, n)
		if err := c.moveOut(int(off), given); err != nil {
			return err
		}
	}
	if err := c.do(blockdev.Request{Op: blockdev.Read, Offset: at, Length: int64(n), Data: medium}); err != nil {
		return err
	}
	if compare {
		if d := mem.DifferSpans(medium, given); d >= 0 {
			return miscompareAt(off + int64(d))
		}
	}
	return nil
}

func miscompareAt(off int64) error {
	return &SenseError{Key: Miscompare, ASC: ASCMiscompare, HasInfo: true, Info: uint64(off)}
}

// verifyOne compares every block of a range with one block of data (BYTCHK 11b).
func (c *Command) verifyOne(r rw) error {
	lu := c.x.lu
	bs := int(lu.bs)
	if err := c.dataOut(int64(bs)); err != nil {
		return err
	}
	one, err := c.alloc(bs)
	if err != nil {
		return err
	}
	given := mem.Chain(nil, one, 0, bs)
	block := make([]byte, 0, bs)
	err = c.moveOut(0, given)
	for _, s := range given {
		block = append(block, s.Bytes()...)
	}
	release(one)
	if err != nil {
		return err
	}
	total := int64(r.n) << lu.shift
	for off := int64(0); off < total; {
		n := int(min(pieceSize, total-off))
		bufs, err := c.alloc(n)
		if err != nil {
			return err
		}
		medium := mem.Chain(nil, bufs, 0, n)
		err = c.do(blockdev.Request{Op: blockdev.Read, Offset: int64(r.lba)<<lu.shift + off, Length: int64(n), Data: medium})
		if err == nil {
			i := 0
		scan:
			for _, s := range medium {
				for _, b := range s.Bytes() {
					if b != block[i%bs] {
						err = miscompareAt(int64(i % bs))
						break scan
					}
					i++
				}
			}
		}
		release(bufs)
		if err != nil {
			return err
		}
		off += int64(n)
	}
	return nil
}

// beginWriteVerify is WRITE AND VERIFY: written through to the medium, read back and, with BYTCHK 01b, compared.
func beginWriteVerify(c *Command) stepResult {
	mode := byteCheck(c.CDB)
	if mode > 1 {
		return c.end(badCDBBit(1, 2))
	}
	want, err := c.setTransfer(parseRW(c.CDB), c.ExpectOut)
	if err != nil {
		return c.end(err)
	}
	c.TransferOut = want
	c.x.kind = kindWrite
	c.x.itl.stats.writes.Add(1)
	start, total := c.x.tr.start, c.x.tr.move&^int64(c.x.lu.bs-1)
	return c.async(func(c *Command) error {
		for off := int64(0); off < total; {
			n := int(min(pieceSize, total-off))
			if err := c.writeVerifyPiece(start, off, n, mode == 1); err != nil {
				return err
			}
			off += int64(n)
		}
		return nil
	})
}

func (c *Command) writeVerifyPiece(start, off int64, n int, compare bool) error {
	bufs, err := c.alloc(2 * n)
	if err != nil {
		return err
	}
	defer release(bufs)
	given, medium := mem.Chain(nil, bufs, 0, n), mem.Chain(nil, bufs, n, n)
	if err := c.moveOut(int(off), given); err != nil {
		return err
	}
	if err := c.do(blockdev.Request{Op: blockdev.Write, Offset: start + off, Length: int64(n), Data: given, FUA: true}); err != nil {
		return err
	}
	if err := c.do(blockdev.Request{Op: blockdev.Read, Offset: start + off, Length: int64(n), Data: medium}); err != nil {
		return err
	}
	if compare {
		if d := mem.DifferSpans(medium, given); d >= 0 {
			return miscompareAt(off + int64(d))
		}
	}
	return nil
}

// beginPreFetch brings a range into the host's cache. CONDITION MET: the cache, which is the host's memory, has room
// (SBC-3 section 5.13).
func beginPreFetch(c *Command) stepResult {
	r := parseRW(c.CDB)
	lu := c.x.lu
	if err := lu.inRange(r.lba, r.n); err != nil {
		return c.end(err)
	}
	if r.n == 0 {
		r.n = lu.blocks() - r.lba // to the end of the medium
	}
	if c.CDB[1]&2 != 0 {
		return c.end(statusError(StatusConditionMet))
	}
	met := r.n<<lu.shift <= maxTransfer
	r.n = min(r.n, maxTransfer>>lu.shift)
	return c.async(func(c *Command) error {
		if err := c.verify(r, false); err != nil {
			return err
		}
		if met {
			return statusError(StatusConditionMet)
		}
		return nil
	})
}
