package scsi

import (
	"fmt"

	"github.com/sluice-storage/sluice/blockdev"
)

// stepBegin is the first step of every command: what SAM and SPC want checked, in their order, then the command itself.
func stepBegin(c *Command) stepResult {
	x := &c.x
	if c.stopping() || x.err != nil {
		return stepDone
	}
	if x.lu == nil {
		if x.row.traits&anyTime == 0 {
			return c.end(check(IllegalRequest, ASCLUNotSupported))
		}
		return x.row.begin(c)
	}
	if err := c.admit(); err != nil {
		return c.end(err)
	}
	return x.row.begin(c)
}

// admit decides whether the state of the logical unit lets the command run.
func (c *Command) admit() error {
	x := &c.x
	r := x.row
	if r.offered != nil && !r.offered(x.lu) {
		return check(IllegalRequest, ASCInvalidOpcode)
	}
	if r.traits&anyTime == 0 {
		if x.itl.unknown.Load() {
			x.itl.open(c)
		}
		refuse := x.itl.owed.Load() != 0 && x.itl.hears(c)
		if asc, ok := x.itl.takeAttention(); ok {
			x.reports = asc
			return check(UnitAttention, asc)
		}
		if refuse {
			return check(UnitAttention, ASCBusDeviceReset)
		}
	}
	if err := c.inaccessible(); err != nil {
		return err
	}
	if c.reserved() {
		x.itl.stats.conflicts.Add(1)
		return statusError(StatusReservationConflict)
	}
	if f := x.lu.flags.Load(); f&flagsNotReady != 0 && (r.traits&notReadyToo == 0 || f&flagNotReady != 0 && (r.traits&mutates != 0 || r.ofState())) {
		return x.lu.notReady(f)
	} else if err := unerased(f); err != nil && r.traits&notReadyToo == 0 && (r.op != OpFormatUnit || f&flagSanitizeBad != 0) {
		return err
	}
	if r.traits&mutates != 0 && (x.lu.has(flagSWP) || x.lu.readOnly()) {
		if x.lu.has(flagSWP) && !x.lu.readOnly() {
			return check(DataProtect, ASCSoftwareWriteProtected)
		}
		return check(DataProtect, ASCWriteProtected)
	}
	return nil
}

// ofState reports whether the command changes or shows what the state file has. A unit without a medium does not read
// that file: its empty table would tell a host that it was fenced, and a reservation that it granted would be
// forgotten.
func (r *row) ofState() bool {
	switch r.op {
	case OpPersistentReserveIn, OpPersistentReserveOut, OpReserve6, OpReserve10, OpRelease6, OpRelease10, OpModeSelect6, OpModeSelect10:
		return true
	}
	return false
}

func (lu *LogicalUnit) notReady(f uint32) *SenseError {
	e := check(NotReady, ASCNotReadyStart)
	switch {
	case f&flagNotReady != 0:
		e.ASC = lu.opt.NotReady
	case f&flagSanitizing != 0:
		e.ASC, e.ProgressValid, e.Progress = ASCSanitizeInProgress, true, uint16(lu.progress.Load())
	case f&flagFormatting != 0:
		e.ASC, e.ProgressValid, e.Progress = ASCFormatInProgress, true, uint16(lu.progress.Load())
	case f&flagEjected != 0:
		e.ASC = ASCMediumNotPresent
	}
	return e
}

// end finishes a command that moved nothing.
func (c *Command) end(err error) stepResult {
	c.fail(err)
	return stepDone
}

// send moves parameter data to the initiator, cut to the allocation length, and ends the command.
func (c *Command) send(data []byte, alloc int) stepResult {
	if len(data) > alloc {
		data = data[:alloc]
	}
	c.x.param = data
	c.TransferIn = int64(len(data))
	t := &c.x.tr
	t.total = min(int64(len(data)), c.ExpectIn)
	if t.total == 0 {
		return stepDone
	}
	c.x.step = stepParam
	return stepParam(c)
}

// scratch is an empty slice to build parameter data in.
func (c *Command) scratch() []byte {
	if c.x.param == nil {
		c.x.param = make([]byte, 0, 512)
	}
	return c.x.param[:0]
}

// inRange checks a range of blocks against the capacity (SBC-3 section 4.5).
func (lu *LogicalUnit) inRange(lba, n uint64) error {
	if size := lu.blocks(); lba > size || n > size-lba {
		return &SenseError{Key: IllegalRequest, ASC: ASCLBAOutOfRange, HasInfo: true, Info: max(lba, size)}
	}
	return nil
}

// rw is the range and the flags of a READ, a WRITE or one of their kin.
type rw struct {
	lba uint64
	n   uint64
	fua bool
	dpo bool
}

// parseRW reads them from any of the CDB formats.
func parseRW(cdb []byte) rw {
	switch cdb[0] >> 5 {
	case 0:
		n := uint64(cdb[4])
		if n == 0 {
			n = 256 // SBC-3 section 5.7
		}
		return rw{lba: uint64(be32(cdb) & 0x1FFFFF), n: n}
	case 1, 2:
		return rw{lba: uint64(be32(cdb[2:])), n: uint64(be16(cdb[7:])), fua: cdb[1]&8 != 0, dpo: cdb[1]&16 != 0}
	case 5:
		return rw{lba: uint64(be32(cdb[2:])), n: uint64(be32(cdb[6:])), fua: cdb[1]&8 != 0, dpo: cdb[1]&16 != 0}
	case 4:
		return rw{lba: be64(cdb[2:]), n: uint64(be32(cdb[10:])), fua: cdb[1]&8 != 0, dpo: cdb[1]&16 != 0}
	}
	// Variable length, 32 bytes.
	return rw{lba: be64(cdb[12:]), n: uint64(be32(cdb[28:])), fua: cdb[10]&8 != 0, dpo: cdb[10]&16 != 0}
}

// setTransfer checks a range and prepares the transfer of it.
func (c *Command) setTransfer(r rw, expect int64) (int64, error) {
	lu := c.x.lu
	if err := lu.inRange(r.lba, r.n); err != nil {
		return 0, err
	}
	if r.n > maxTransfer>>lu.shift {
		// SBC-3 section 6.6.4: more than MAXIMUM TRANSFER LENGTH.
		return 0, badCDB(transferLengthField(c.CDB))
	}
	want := int64(r.n) << lu.shift
	t := &c.x.tr
	t.start, t.move, t.fua = int64(r.lba)<<lu.shift, min(want, expect), r.fua
	return want, nil
}

func transferLengthField(cdb []byte) int {
	return [8]int{4, 7, 7, 28, 10, 6, 0, 0}[cdb[0]>>5]
}

func beginRead(c *Command) stepResult {
	want, err := c.setTransfer(parseRW(c.CDB), c.ExpectIn)
	if err != nil {
		return c.end(err)
	}
	c.TransferIn = want
	t := &c.x.tr
	// A buffer that ends within a block still gets its part of it.
	t.total = (t.move + int64(c.x.lu.bs) - 1) &^ int64(c.x.lu.bs-1)
	c.x.kind = kindRead
	c.x.itl.stats.reads.Add(1)
	c.x.itl.stats.readBytes.Add(t.total)
	if parseRW(c.CDB).fua && !c.x.lu.has(flagNoCache) && c.x.lu.can(blockdev.Flush) {
		// SBC-3 section 4.15: with FUA the data comes from the medium, so a cached write has to get there first.
		return c.flushThen(stepRead)
	}
	c.x.step = stepRead
	return stepRead(c)
}

func beginWrite(c *Command) stepResult {
	want, err := c.setTransfer(parseRW(c.CDB), c.ExpectOut)
	if err != nil {
		return c.end(err)
	}
	c.TransferOut = want
	t := &c.x.tr
	// Half a block cannot be written.
	t.total = t.move &^ int64(c.x.lu.bs-1)
	t.fua = t.fua || c.x.lu.has(flagNoCache)
	c.x.kind = kindWrite
	c.x.itl.stats.writes.Add(1)
	c.x.itl.stats.writtenBytes.Add(t.total)
	c.x.step = stepWrite
	return stepWrite(c)
}

// flushThen flushes the device and goes on with next.
func (c *Command) flushThen(next func(*Command) stepResult) stepResult {
	c.submitFlush()
	c.x.step = func(c *Command) stepResult {
		if r := stepFlush(c); r != stepDone || c.x.err != nil {
			return r
		}
		c.x.step = next
		return next(c)
	}
	return c.x.step(c)
}

func (c *Command) submitFlush() {
	p := c.x.tr.at(0)
	p.req.Op, p.req.Offset, p.req.Length, p.req.Data, p.req.FUA, p.req.Err = blockdev.Flush, 0, 0, nil, false, nil
	p.submit(c.x.lu.dev)
}

func beginSyncCache(c *Command) stepResult {
	r := parseRW(c.CDB)
	if err := c.x.lu.inRange(r.lba, r.n); err != nil {
		return c.end(err)
	}
	c.x.itl.stats.others.Add(1)
	c.x.owed = c.x.lu.owesLoss(c.x.itl.id) // before the flush: one that begins before another is told of the loss claims nothing either
	c.submitFlush()
	c.x.step = stepSyncCache
	return stepSyncCache(c)
}

// stepSyncCache fails a flush that is the report of a loss, once the medium has what there is.
func stepSyncCache(c *Command) stepResult {
	r := stepFlush(c)
	switch {
	case r != stepDone || !c.x.owed:
	case c.x.err == nil:
		c.fail(ofDevice(blockdev.Flush, errLostBefore, 0))
	default:
		c.x.owed = false // it tells of something else, after which the host may ask again
	}
	return r
}

var errLostBefore = fmt.Errorf("%w: writes that were acknowledged and not flushed were lost before the volume was served", blockdev.ErrMedium)
