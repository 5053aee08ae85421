package rpcserver

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/transport"
)

// A read chunk without a byte has nothing that could be waited for: its call is executed at once, by clients that are trusted or not.
func TestACallWithAReadChunkOfNoBytesIsExecuted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		empty := rpcrdma.ReadSegment{Segment: c.bind(0, 4096, transport.RemoteRead)}
		empty.Len = 0
		for _, proc := range []uint32{procEcho, procTrust, procEcho} {
			if xid := c.call(proc, empty, empty); c.got[xid] != 1 {
				t.Errorf("%d replies to procedure %d", c.got[xid], proc)
			}
		}
	})
}

// Each state of a slot has a way in and a way out, and no slot is given back twice or sends two replies.
func TestNoStateOfASlotIsADeadEnd(t *testing.T) {
	for s := slotIdle; s <= slotReplying; s++ {
		in, out := false, false
		for o := slotIdle; o <= slotReplying; o++ {
			in, out = in || slots.May(o, s), out || slots.May(s, o)
		}
		if !in || !out || slots.May(s, s) {
			t.Errorf("%q: a way in %v, a way out %v, follows itself %v", slots.Name(s), in, out, slots.May(s, s))
		}
		if s != slotIdle && !slots.May(s, slotIdle) {
			t.Errorf("the call in a slot that is %q cannot be dropped", slots.Name(s))
		}
	}
}

// While Reads fetch a call's data nothing else is done with its slot, and what is replied to is over.
func TestASlotIsNotReusedUnderAReadOrAReply(t *testing.T) {
	for _, from := range []slotState{slotReading, slotFailing, slotReplying} {
		for _, to := range []slotState{slotArrived, slotStalled, slotReading, slotUnsent} {
			if slots.May(from, to) {
				t.Errorf("a slot may go from %q to %q", slots.Name(from), slots.Name(to))
			}
		}
	}
}
