package rpcserver

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/transporttest"
)

// witness sees the last queue pair that a device makes.
type witness struct {
	transport.Device
	mu sync.Mutex
	qp transport.QP
}

func (d *witness) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qp = q
	return q, err
}

func (d *witness) slim() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return transporttest.Slim(d.qp)
}

// A connection has all of the server's memory when its client has shown a right, and not before: where each connection has regions of its
// own, the limit of locked memory is not for strangers.
func TestAConnectionHasAllMemoryWhenItsClientHasShownARight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twins, seen := newTwins, &witness{}
		newTwins = func() (here, there transport.Device) {
			seen.Device, there = twins()
			return seen, there
		}
		defer func() { newTwins = twins }()
		_, _, connect, end := serveFabric(t, Options{})
		defer end()
		c := connect()
		c.call(procEcho)
		if !seen.slim() {
			t.Error("a stranger's connection has all memory")
		}
		c.call(procTrust)
		if seen.slim() {
			t.Error("one that has shown a right has not")
		}
	})
}
