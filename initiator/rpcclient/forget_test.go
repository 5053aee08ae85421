package rpcclient

import (
	"testing"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// slabDevice is a device without windows.
type slabDevice struct{ transport.Device }

func (slabDevice) Caps() transport.Caps { return transport.Caps{InOrder: true} }

// closing is a queue pair that tells when it is closed.
type closing struct {
	transport.QP
	told chan struct{}
}

func (q closing) Close(transport.Reason) error {
	close(q.told)
	return nil
}

// Where an STag is a whole slab's, a caller who gives up has its memory back when the connection is gone and not before: what was
// sent may be carried out while it ends.
func TestMemoryOfAWholeSlabIsTheCallersAgainWhenTheConnectionIsGone(t *testing.T) {
	q := closing{told: make(chan struct{})}
	l := &rdma{r: &RDMA{dev: slabDevice{}}, qp: q, byXID: map[uint32]*slot{}}
	s, p := &l.slots[0], &pending{}
	s.p, p.slot = p, s
	s.data.bound, s.data.local[0] = true, mem.Span{Len: 8} // the caller's own
	back := make(chan struct{})
	go func() {
		defer close(back)
		l.forget(p)
	}()
	<-q.told
	l.mu.Lock() // forget waits by now
	gone := s.gone
	l.completeLocked(&transport.WC{Op: transport.OpSend, Token: kindSend})
	select {
	case <-gone:
		t.Error("the memory is the caller's again while the server may write to it")
	default:
	}
	s.tellGone() // the connection's end
	l.mu.Unlock()
	<-back
}
