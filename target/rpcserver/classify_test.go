package rpcserver

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/internal/xdr"
	"github.com/sluice-storage/sluice/transport"
)

// again is a program whose calls are classed Inline, and turn out to need a worker. It parses its argument as it classes.
type again struct{ *program }

func (p again) Classify(c *Call) Class {
	p.classed.Add(1)
	v, ok := c.Parsed.(*uint32)
	if !ok {
		v = new(uint32)
		c.Parsed = v
	}
	*v = c.Args.Uint32()
	return Inline
}

func (p again) Serve(c *Call) Verdict {
	if !c.Worker {
		c.Args.Uint32() // what is taken by a try in vain is there again for the worker
		return Again
	}
	v, _ := c.Parsed.(*uint32)
	c.Out = xdr.AppendUint32(c.Out, *v+c.Args.Uint32())
	return Done
}

// A program is asked once for the class of a call, and parses its arguments there alone, whichever goroutine executes it.
func TestACallIsClassedOnce(t *testing.T) {
	for name, o := range map[string]Options{"": {}, "by workers": {NoInline: true}} {
		t.Run("stream "+name, func(t *testing.T) {
			_, p, addr := serve(t, o)
			p.brief.Store(true)
			close(p.gate)
			nc := dial(t, addr)
			for i, proc := range []uint32{procEcho, procWait, procWrite, procCount, 99} { // inline, serial, worker, worker with a kept reply, none
				write(t, nc, record(uint32(i), proc, 7))
				_, _, _, _ = answer(t, nc)
				if n := p.classed.Load(); n != int32(i+1) {
					t.Errorf("procedure %d: %d calls classed %d times", proc, i+1, n)
				}
			}
		})
	}
	t.Run("tried in vain", func(t *testing.T) {
		p := &program{}
		_, addr := serveProgram(t, Options{}, again{p})
		nc := dial(t, addr)
		msg := xdr.AppendUint32(record(5, procEcho, 30)[4:], 4)
		write(t, nc, append([]byte{0x80, 0, 0, byte(len(msg))}, msg...))
		if xid, v, _, err := answer(t, nc); xid != 5 || v != 34 || err != nil {
			t.Error(xid, v, err)
		}
		if n := p.classed.Load(); n != 1 {
			t.Errorf("classed %d times", n)
		}
	})
	t.Run("fabric", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			_, p, connect, end := serveFabric(t, Options{})
			defer end()
			close(p.gate)
			p.brief.Store(true)
			c := connect()
			read := rpcrdma.ReadSegment{Segment: c.bind(0, 4096, transport.RemoteRead)}
			c.call(procWrite, read) // screened: its client has shown no right
			c.call(procTrust)
			c.call(procWait)                                                                           // owner's
			c.call(procWait, rpcrdma.ReadSegment{Segment: c.bind(1<<13, 4096, transport.RemoteRead)})  // owner's, with data
			c.call(procWrite, rpcrdma.ReadSegment{Segment: c.bind(1<<14, 4096, transport.RemoteRead)}) // a worker's
			for xid := uint32(1); xid <= c.xid; xid++ {
				if c.got[xid] != 1 {
					t.Errorf("call %d: %d replies", xid, c.got[xid])
				}
			}
			if n := p.classed.Load(); n != int32(c.xid) {
				t.Errorf("%d calls classed %d times", c.xid, n)
			}
		})
	})
}
