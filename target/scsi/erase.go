package scsi

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Service actions of SANITIZE (SBC-3 table 74).
const (
	sanitizeOverwrite  = 0x01
	sanitizeBlockErase = 0x02
	sanitizeCrypto     = 0x03
	sanitizeExit       = 0x1F
)

// erasure is a pass over the whole medium: FORMAT UNIT or SANITIZE. It outlives the command that began it (IMMED), and the
// daemon.
type erasure struct {
	zero     bool                     // write zeroes and give the space back
	zeroLast bool                     // do so in the last pass
	fill     func(pass int, b []byte) // else what to write
	passes   int
}

// running is an erasure in the background.
type running struct {
	noted chan struct{} // closed when a crash does not end it any more
	done  chan error
}

// claim sets flag, which keeps other commands off, unless an erasure runs: exactly one does at a time.
func (lu *LogicalUnit) claim(flag uint32) error {
	for {
		f := lu.flags.Load()
		if f&(flagFormatting|flagSanitizing) != 0 {
			return lu.notReady(f)
		}
		if lu.flags.CompareAndSwap(f, f|flag) {
			lu.progress.Store(0)
			return nil
		}
	}
}

// erase does in the background what n says. What was let in before reaches the medium before it is erased.
func (lu *LogicalUnit) erase(by *Command, n erasureNote) (*running, error) {
	if err := lu.claim(n.flag()); err != nil {
		return nil, err
	}
	if err := lu.intend(&n); err != nil {
		lu.set(n.flag(), false)
		return nil, err
	}
	earlier := make(chan struct{})
	w := newWait(func() { close(earlier) })
	await := func(i *itl) { i.await(w, by) }
	lu.all(await, await)
	w.release()
	r := &running{noted: make(chan struct{}), done: make(chan error, 1)}
	lu.background.Add(1)
	go func() {
		defer lu.background.Done()
		begun := n
		begun.Begun, begun.Failed = true, false
		if err := lu.settle(&begun); err != nil {
			r.done <- err
			return
		}
		close(r.noted)
		<-earlier
		r.done <- lu.complete(n)
	}()
	return r, nil
}

// complete erases the medium and takes the note of it away. The unit stays NOT READY until that is durable, or the next
// start would erase what hosts wrote after it.
func (lu *LogicalUnit) complete(n erasureNote) error {
	e, err := lu.erasureOf(&n)
	if err == nil {
		err = lu.erasePasses(e)
	}
	if err != nil && lu.stop.Err() != nil {
		return err // it goes on at the next start
	}
	var left *erasureNote
	if err != nil {
		lu.log.Error("erasing a volume failed; it answers with MEDIUM ERROR until the command is repeated", zap.String("volume", lu.opt.Name), zap.Stringer("command", &n), zap.Error(err))
		n.Begun, n.Failed = false, true
		left = &n
	}
	if serr := lu.settle(left); serr != nil {
		return errors.Join(err, serr)
	}
	for {
		f := lu.flags.Load()
		next := f &^ (n.flag() | flagsUnerased)
		if err != nil {
			next |= n.failed()
		}
		if lu.flags.CompareAndSwap(f, next) {
			return err
		}
	}
}

// eraseFor does so for c, which ends now with IMMED, else with the erasure.
func (c *Command) eraseFor(n erasureNote, immed bool) error {
	r, err := c.x.lu.erase(c, n)
	if err != nil {
		return err
	}
	return c.begun(r, immed)
}

func (lu *LogicalUnit) erasePasses(e erasure) error {
	slab, err := mem.NewSlab(pieceSize)
	if err != nil {
		return err
	}
	defer func() { _ = slab.Close() }()
	for pass := range e.passes {
		zero := e.zero || e.zeroLast && pass == e.passes-1
		for off := int64(0); ; {
			size := lu.geo.Load().Size // it may grow meanwhile
			if off >= size {
				break
			}
			if err := lu.stop.Err(); err != nil {
				return err
			}
			n := min(size-off, pieceSize)
			r := blockdev.Request{Op: blockdev.Write, Offset: off, Data: []mem.Span{{Slab: slab, Len: int(n)}}}
			switch {
			case zero && lu.can(blockdev.WriteZeroes):
				n = min(size-off, 64<<20)
				r = blockdev.Request{Op: blockdev.WriteZeroes, Offset: off, Unmap: lu.canUnmap()}
			case zero:
				clear(slab.Bytes())
			default:
				e.fill(pass, slab.Bytes()[:n])
			}
			r.Length = n
			// Without a deadline: the memory is the device's until it is done.
			if err := blockdev.Do(context.Background(), lu.dev, &r); err != nil {
				return ofDevice(r.Op, err, lu.lba(off))
			}
			off += n
			lu.progress.Store(uint32((float64(pass) + float64(off)/float64(size)) / float64(e.passes) * 65535))
		}
		// Each pass reaches the medium: what a later one overwrites in a cache would never have been written.
		if err := blockdev.Sync(context.Background(), lu.dev); err != nil {
			return ofDevice(blockdev.Flush, err, 0)
		}
	}
	// SBC-3 section 4.11: no copy of the data is left, in a log of the device as little as on the medium.
	return ofDevice(blockdev.Write, blockdev.Scrub(lu.dev), 0)
}

// begun ends the command: with IMMED when the erasure is sure to come to its end, else when it has.
func (c *Command) begun(r *running, immed bool) error {
	noted := r.noted
	for {
		select {
		case err := <-r.done:
			return err
		case <-noted:
			if immed {
				return nil
			}
			noted = nil
		case <-c.x.wake:
			// SBC-3 section 4.11.2: an abort ends the command, never the operation.
			if c.stopping() {
				return c.x.err
			}
		}
	}
}

func (lu *LogicalUnit) erasing() bool { return lu.has(flagFormatting | flagSanitizing) }

// beginSanitize is SANITIZE (SBC-3 section 5.24), offered only where configuration allows it.
func beginSanitize(c *Command) stepResult {
	lu := c.x.lu
	immed, sa, n := c.CDB[1]&0x80 != 0, int(c.CDB[1]&0x1F), int(be16(c.CDB[7:]))
	if lu.erasing() {
		return c.end(lu.notReady(lu.flags.Load()))
	}
	if sa != sanitizeOverwrite && n != 0 {
		return c.end(badCDB(7))
	}
	if sa == sanitizeExit {
		if !lu.has(flagSanitizeBad) {
			return stepDone
		}
		return c.async(func(*Command) error { return lu.exitFailureMode() })
	}
	if sa == sanitizeOverwrite && n < 5 {
		return c.end(badCDB(7))
	}
	return c.asyncParams(n, func(c *Command, list []byte) error {
		e := erasureNote{Action: sa, AUSE: c.CDB[1]&0x20 != 0}
		if sa == sanitizeOverwrite {
			if err := overwriteOf(lu, list, &e); err != nil {
				return err
			}
		}
		return c.eraseFor(e, immed)
	})
}

// erasureOf is how the medium is erased.
func (lu *LogicalUnit) erasureOf(n *erasureNote) (erasure, error) {
	e := erasure{passes: 1, zero: true}
	switch n.Action {
	case formatUnit, sanitizeBlockErase:
	case sanitizeCrypto:
		// First what a medium looks like whose key is gone, then the zeroes that LBPRZ promises of unmapped blocks.
		stream, err := randomStream()
		if err != nil {
			return e, err
		}
		if e.zero, e.zeroLast = false, lu.zeroReads(); e.zeroLast {
			e.passes = 2
		}
		e.fill = func(_ int, b []byte) { clear(b); stream.XORKeyStream(b, b) }
	case sanitizeOverwrite:
		if len(n.Pattern) == 0 || n.Passes == 0 {
			return e, errors.New("scsi: the note of an overwrite has no pattern")
		}
		e.passes, e.zero = n.Passes, false
		e.fill = func(pass int, b []byte) {
			flip := byte(0)
			if n.Invert && pass%2 == 1 {
				flip = 0xFF
			}
			for i := range b {
				b[i] = n.Pattern[i%int(lu.bs)%len(n.Pattern)] ^ flip
			}
		}
	default:
		return e, fmt.Errorf("scsi: no erasure has the number %d", n.Action)
	}
	return e, nil
}

func randomStream() (cipher.Stream, error) {
	var key [32]byte
	if _, err := rand.Read(key[:]); err != nil {
		return nil, err
	}
	b, err := aes.NewCipher(key[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewCTR(b, make([]byte, aes.BlockSize)), nil
}

// overwriteOf reads the overwrite service action's parameter list (SBC-3 table 76).
func overwriteOf(lu *LogicalUnit, list []byte, n *erasureNote) error {
	length := int(be16(list[2:]))
	n.Invert, n.Passes = list[0]&0x80 != 0, int(list[0]&0x1F)
	if n.Passes == 0 {
		return badParam(0)
	}
	if length == 0 || length > int(lu.bs) || len(list) != 4+length {
		return badParam(2)
	}
	n.Pattern = append([]byte(nil), list[4:]...)
	return nil
}

// beginFormatUnit is FORMAT UNIT (SBC-3 section 5.3): the medium reads as zeroes afterwards. Protection information and
// defect lists are not for this medium.
func beginFormatUnit(c *Command) stepResult {
	lu := c.x.lu
	fmtData, long, info := c.CDB[1]&0x10 != 0, c.CDB[1]&0x20 != 0, c.CDB[1]>>6
	if info != 0 {
		return c.end(badCDBBit(1, 7))
	}
	if lu.erasing() {
		return c.end(lu.notReady(lu.flags.Load()))
	}
	e := erasureNote{Action: formatUnit}
	if !fmtData {
		return c.async(func(c *Command) error { return c.eraseFor(e, false) })
	}
	n := 4
	if long {
		n = 8
	}
	return c.asyncParams(n, func(c *Command, list []byte) error {
		if list[0]&7 != 0 {
			return badParam(0) // PROTECTION FIELD USAGE
		}
		if list[1]&0x08 != 0 {
			return badParam(1) // initialization pattern
		}
		defects := int(be16(list[2:]))
		if long {
			defects = int(be32(list[4:]))
		}
		if defects != 0 {
			return badParam(n - 2)
		}
		return c.eraseFor(e, list[1]&0x02 != 0)
	})
}
