package rpcserver

import (
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/internal/rpcrdma"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

func TestTheFabricServiceOverAnAdapter(t *testing.T) {
	transporttest.OverAdapters(t, "Credit|Chunk|RDMA|Reads|Own|Stranger|Inval",
		"^TestCreditsCloseWithIdleness$", // it sends beyond its grant, which an adapter holds back
		false)
}

// On adapters a reply that is behind a Read completes behind it, however long the client delays that. The client has its reply by then, and
// calls again: it has broken no rule, and what waits is answered when there is room (transport, rule 4).
func TestAClientThatDelaysAReadIsNotTakenForOneThatOverrunsItsCredits(t *testing.T) {
	newTwins = func() (transport.Device, transport.Device) { return transporttest.AdapterTwin(transporttest.Adapter{}) }
	defer func() { newTwins = transporttest.Twin }()
	synctest.Test(t, func(t *testing.T) {
		const credits = 4
		_, _, connect, end := serveFabric(t, Options{RDMA: RDMAOptions{Credits: credits}})
		defer end()
		c := connect()
		held := c.qp.(interface{ HoldReads(bool) })
		held.HoldReads(true)
		h := c.header()
		h.Proc = rpcrdma.Nomsg
		msg := c.msg(procEcho, 77)
		copy(c.bulk(0, len(msg)).Bytes(), msg)
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Segment: c.bind(0, len(msg), transport.RemoteRead)})
		c.send(h.Append(nil))
		delayed := c.xid
		// As many as there are slots for are answered at once; more wait, no more of them than there are credits.
		for range 2*credits - 1 {
			c.call(procEcho)
			if c.ended || c.got[c.xid] != 1 {
				t.Fatalf("call %d behind a delayed Read: %d answers, ended %v", c.xid, c.got[c.xid], c.ended)
			}
		}
		for range credits - 1 {
			c.call(procEcho)
		}
		if c.ended || c.got[delayed] != 0 {
			t.Fatalf("ended %v, %d answers to the delayed call", c.ended, c.got[delayed])
		}
		held.HoldReads(false)
		c.poll()
		if c.ended || len(c.got) != int(c.xid) {
			t.Fatalf("%d of %d calls answered, ended %v", len(c.got), c.xid, c.ended)
		}
		c.call(procEcho)
		if c.got[c.xid] != 1 {
			t.Fatal("no answer after that")
		}
	})
}
