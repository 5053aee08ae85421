package block

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// awayDevice is an adapter whose port is down: no attempt to connect succeeds, and it tells when another may.
type awayDevice struct {
	transport.Device

	mu       sync.Mutex
	attempts int
	woken    chan struct{}
	during   func() // an attempt, once
}

func (d *awayDevice) Name() string               { return "away" }
func (d *awayDevice) Caps() transport.Caps       { return transport.Caps{PerIOWindows: true, MaxReads: 16} }
func (d *awayDevice) Register(*mem.Slab) error   { return nil }
func (d *awayDevice) Unregister(*mem.Slab) error { return nil }

func (d *awayDevice) NewQP(transport.QPOptions) (transport.QP, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.attempts++
	if f := d.during; f != nil {
		d.during = nil
		f()
	}
	return nil, errors.New("port 1 is down")
}

func (d *awayDevice) Woken() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.woken
}

func (d *awayDevice) wakeLocked() {
	close(d.woken)
	d.woken = make(chan struct{})
}

// A path that is down is tried when its adapter's port is back, however long the pause has become; the wake of a moment in which an attempt
// was under way counts too.
func TestAPathIsTriedAtOnceWhenItsPortIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		d := &awayDevice{woken: make(chan struct{})}
		i, err := New(Options{DialTCP: f.dial, Device: d, MinBackoff: time.Hour, MaxBackoff: 8 * time.Hour, Keepalive: 1000 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		const lun = "/iqn.2026-01.org.example:fake/0"
		v, err := i.Open(context.Background(), "iscsi://fake"+lun, "iser://fake"+lun)
		if err != nil {
			t.Fatal(err)
		}
		attempts := func(do func()) (n int) {
			synctest.Wait()
			d.mu.Lock()
			before := d.attempts
			if do != nil {
				do()
			}
			d.mu.Unlock()
			synctest.Wait()
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.attempts - before
		}
		time.Sleep(4 * time.Hour) // the pauses are long by now
		began := time.Now()
		if n := attempts(nil); n != 0 {
			t.Fatalf("%d attempts while nothing happens", n)
		}
		if n := attempts(d.wakeLocked); n != 1 {
			t.Errorf("%d attempts when the port is back", n)
		}
		if n := attempts(func() { d.during = d.wakeLocked; d.wakeLocked() }); n != 2 {
			t.Errorf("%d attempts when the port goes and comes back during one", n)
		}
		if !time.Now().Equal(began) {
			t.Error("time has passed")
		}
		d.mu.Lock()
		before := d.attempts
		d.mu.Unlock()
		time.Sleep(2 * time.Hour) // more than the shortest pause and its quarter: it is the one after a wake
		synctest.Wait()
		d.mu.Lock()
		if n := d.attempts - before; n != 1 {
			t.Errorf("%d attempts in two hours", n)
		}
		d.mu.Unlock()
		if err := errors.Join(v.Close(), i.Close()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}
