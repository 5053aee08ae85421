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
