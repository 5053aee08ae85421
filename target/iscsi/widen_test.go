package iscsi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
)

// wideDevice is a device whose connections are given all memory by widen.
type wideDevice struct {
	transport.Device
	widen func() error
}

type wideQP struct {
	transport.QP
	d *wideDevice
}

func (q wideQP) Widen() error { return q.d.widen() }

func (d *wideDevice) NewQP(o transport.QPOptions) (transport.QP, error) {
	q, err := d.Device.NewQP(o)
	return wideQP{q, d}, err
}

func (d *wideDevice) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	l, err := d.Device.Listen(ctx, addr)
	return wideListener{l}, err
}

type wideListener struct{ transport.Listener }

func (l wideListener) Accept(ctx context.Context) (transport.Request, error) {
	r, err := l.Listener.Accept(ctx)
	return wideRequest{r}, err
}

type wideRequest struct{ transport.Request }

func (r wideRequest) Accept(ctx context.Context, q transport.QP, p transport.ConnParams) error {
	return r.Request.Accept(ctx, q.(wideQP).QP, p)
}

// newWideFixture is newTwinFixture over such a device.
func newWideFixture(t *testing.T, d *wideDevice) *fixture {
	twins := newTwins
	newTwins = func() (here, there transport.Device) {
		d.Device, there = twins()
		return d, there
	}
	defer func() { newTwins = twins }()
	return newTwinFixture(t)
}

// A login that finds no room for its memory is logged so; one whose connection ends meanwhile is not: the operator would look for memory.
func TestALoginWhoseConnectionEndsIsNoWantOfMemory(t *testing.T) {
	for name, err := range map[string]error{"no room": mem.ErrNoRoom, "ended": transport.ErrLost} {
		t.Run(name, func(t *testing.T) {
			f := newWideFixture(t, &wideDevice{widen: func() error { return fmt.Errorf("a slab: %w", err) }})
			p := f.dialISER(iscsi.CMPrivate(true))
			p.w.(*iserWire).full(64)
			p.send(p.loginReq(iscsi.StageOperational, iscsi.StageFullFeature, true), nil, keys("InitiatorName="+testInitiator, "TargetName="+testTarget, "RDMAExtensions=Yes"))
			p.wantEnd()
			said := false
			for _, e := range f.logs.All() {
				said = said || strings.Contains(e.Message, "no memory")
			}
			if said != (name == "no room") {
				t.Errorf("want of memory is logged: %v", said)
			}
		})
	}
}

// To give a connection all memory takes long: what asks about the connection, or ends it, does not wait for that.
func TestAConnectionIsNotHeldWhileItIsGivenAllMemory(t *testing.T) {
	var f *fixture
	asked := 0
	f = newWideFixture(t, &wideDevice{widen: func() error {
		f.srv.mu.Lock()
		var l []*conn
		for c := range f.srv.conns {
			l = append(l, c)
		}
		f.srv.mu.Unlock()
		for _, c := range l {
			for end := time.Now().Add(5 * time.Second); !c.mu.TryLock(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					return fmt.Errorf("the connection is locked")
				}
			}
			c.mu.Unlock()
			asked++
		}
		return nil
	}})
	p := f.dialISER(iscsi.CMPrivate(true))
	p.enter()
	p.ready()
	if asked != 1 {
		t.Errorf("asked %d connections", asked)
	}
}
