package e2e

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// witness sees the queue pairs that a device makes.
type witness struct {
	transport.Device
	mu  sync.Mutex
	qps []transport.QP
}

func (d *witness) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	if err == nil {
		d.mu.Lock()
		d.qps = append(d.qps, q)
		d.mu.Unlock()
	}
	return q, err
}

// slim says of each queue pair whether it has only the memory that it uses.
func (d *witness) slim() (l []bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.qps {
		l = append(l, transporttest.Slim(q))
	}
	return l
}

// A target gives a connection all of its memory when that has logged in, and not before: where each connection has regions of its own, the
// limit of locked memory is not for peers that have proved nothing.
func TestAConnectionHasAllMemoryWhenItHasLoggedIn(t *testing.T) {
	net := transporttest.NewNetwork()
	near, far := &witness{Device: net.Adapter(transporttest.Adapter{})}, net.Adapter(transporttest.Adapter{})
	t.Cleanup(func() { must(t, errors.Join(far.Close(), near.Close())) }) // after the stand: its server ends by itself
	s := newStand(t, iwarp.Options{})
	addr := s.Fabric(near, "192.0.2.1:3260", 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	silent, err := far.NewQP(transport.QPOptions{})
	must(t, err)
	_, err = far.Dial(ctx, addr, silent, transport.ConnParams{Private: iscsi.CMPrivate(false), ReadsIn: 1, ReadsOut: 1})
	must(t, err)
	if got := near.slim(); len(got) != 1 || !got[0] {
		t.Errorf("before a login: %v", got)
	}
	i, err := block.New(block.Options{Device: far})
	must(t, err)
	t.Cleanup(func() { must(t, i.Close()) })
	open(t, i, url("iser", addr))
	if got := near.slim(); len(got) != 2 || !got[0] || got[1] {
		t.Errorf("after the login of another: %v", got)
	}
	must(t, silent.Close(transport.Reason{}))
}
