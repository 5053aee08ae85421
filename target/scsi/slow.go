package scsi

import (
	"errors"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// Commands off the data path run on a goroutine of their own and read like the standard's text: all but READ, WRITE,
// SYNCHRONIZE CACHE and those that only report. The helpers here wait. The command window bounds their number.

// async continues the command on its own goroutine. f returns when nothing of the command is outstanding; its error is
// the outcome.
func (c *Command) async(f func(*Command) error) stepResult {
	c.x.mu.Lock()
	commandRun.Move(&c.x.run, runSlow)
	c.x.mu.Unlock()
	c.x.itl.stats.others.Add(1)
	c.Behind = false // behind the goroutine nothing is flushed
	go func() {
		err := f(c)
		c.stopping()
		c.fail(err)
		c.finish()
	}()
	return stepHanded
}

// asyncParams fetches a parameter list of n bytes and hands it to f, on a goroutine of its own.
func (c *Command) asyncParams(n int, f func(c *Command, list []byte) error) stepResult {
	return c.async(func(c *Command) error {
		list, err := c.fetch(n)
		if err != nil {
			return err
		}
		return f(c, list)
	})
}

// until waits until cond, which is called under x.mu. With abortable it gives up when the command is aborted.
func (c *Command) until(abortable bool, cond func() bool) error {
	for {
		c.x.mu.Lock()
		ok, aborted := cond(), c.x.abort != abortNone
		c.x.mu.Unlock()
		if ok {
			return nil
		}
		if aborted && abortable {
			return errAborted
		}
		<-c.x.wake
		c.stopping() // asks the mover to end a move of an aborted command
	}
}

// alloc takes memory, and waits for it if it must.
func (c *Command) alloc(n int) ([]*mem.Buf, error) {
	for {
		if c.stopping() {
			return nil, c.x.err
		}
		bufs, ok := c.getMem(n, nil)
		if ok {
			return bufs, nil
		}
		if c.x.err != nil {
			return nil, c.x.err
		}
		if err := c.until(true, func() bool { return c.x.memory != memoryQueued }); err != nil {
			return nil, err
		}
	}
}

// submit begins a device request on slot i; the caller has set nothing but what it names.
func (c *Command) submit(lu *LogicalUnit, i int, set blockdev.Request) {
	p := &c.x.tr.piece[i]
	set.Done = p.req.Done
	p.req = set
	p.submit(lu.dev)
}

// await waits for slot i.
func (c *Command) await(i int) error {
	p := &c.x.tr.piece[i]
	_ = c.until(false, p.takeDoneLocked)
	return p.req.Err
}

// do performs one device request and translates its error.
func (c *Command) do(r blockdev.Request) error { return c.doOn(c.x.lu, r) }

func (c *Command) doOn(lu *LogicalUnit, r blockdev.Request) error {
	if c.stopping() {
		return c.x.err
	}
	c.submit(lu, 0, r)
	err := c.await(0)
	if errors.Is(err, blockdev.ErrMiscompare) {
		miss := c.x.tr.piece[0].req.Miss
		return &SenseError{Key: Miscompare, ASC: ASCMiscompare, HasInfo: true, Info: uint64(miss), Cause: err}
	}
	if err != nil {
		c.countError(r.Op)
	}
	return ofDevice(r.Op, err, lu.lba(r.Offset))
}

func (c *Command) move(start func()) error {
	if c.stopping() {
		return c.x.err
	}
	c.startMove()
	start()
	var end error
	_ = c.until(false, func() (ended bool) {
		ended, end = c.takeMovedLocked()
		return ended
	})
	return end
}

// moveOut fetches Data-Out bytes.
func (c *Command) moveOut(off int, spans []mem.Span) error {
	return c.move(func() { c.Mover.DataOut(c, off, spans) })
}

func (c *Command) moveIn(off int, spans []mem.Span) error {
	return c.move(func() { c.Mover.DataIn(c, off, spans) })
}

// fetch returns a parameter list of n bytes.
func (c *Command) fetch(n int) ([]byte, error) {
	c.TransferOut = int64(n)
	switch {
	case n == 0:
		return nil, nil
	case n > maxParameter, int64(n) > c.ExpectOut:
		// More than an initiator would send, or more than the initiator has: the list is cut short either way.
		return nil, check(IllegalRequest, ASCParameterListLength)
	}
	bufs, err := c.alloc(n)
	if err != nil {
		return nil, err
	}
	defer release(bufs)
	if err := c.moveOut(0, mem.Chain(nil, bufs, 0, n)); err != nil {
		return nil, err
	}
	list := make([]byte, 0, n)
	for _, b := range bufs {
		list = append(list, b.Bytes()...)
	}
	return list, nil
}

// reply sends parameter data from a goroutine of the command's own.
func (c *Command) reply(data []byte, alloc int) error {
	data = data[:min(len(data), alloc)]
	c.TransferIn = int64(len(data))
	n := int(min(int64(len(data)), c.ExpectIn))
	if n == 0 {
		return nil
	}
	bufs, err := c.alloc(n)
	if err != nil {
		return err
	}
	defer release(bufs)
	spans := mem.Chain(nil, bufs, 0, n)
	for _, s := range spans {
		data = data[copy(s.Bytes(), data):]
	}
	return c.moveIn(0, spans)
}

// wholeData checks that the initiator gives exactly n bytes. COMPARE AND WRITE and WRITE SAME do nothing with a part of
// their data, and too much data means that initiator and target disagree on the block size.
func (c *Command) wholeData(n int64) error {
	c.TransferOut = n
	if c.ExpectOut != n {
		return check(IllegalRequest, ASCInvalidFieldInCDB)
	}
	return nil
}

// dataOut checks that the initiator gives all of n bytes.
func (c *Command) dataOut(n int64) error {
	c.TransferOut = n
	if c.ExpectOut < n {
		return check(IllegalRequest, ASCInvalidFieldInCDB)
	}
	return nil
}

// repeat writes block over and over into n bytes of the medium, through spans of whole blocks.
func (c *Command) repeat(at, n int64, block []byte, spans []mem.Span) error {
	i := 0
	for _, s := range spans {
		b := s.Bytes()
		for len(b) > 0 {
			k := copy(b, block[i:])
			b = b[k:]
			i = (i + k) % len(block)
		}
	}
	size := mem.Total(spans)
	for n > 0 {
		k := min(n, size)
		data := spans
		if k < size {
			data = mem.Part(nil, spans, 0, k)
		}
		if err := c.do(blockdev.Request{Op: blockdev.Write, Offset: at, Length: k, Data: data, FUA: c.x.lu.has(flagNoCache)}); err != nil {
			return err
		}
		at, n = at+k, n-k
	}
	return nil
}
