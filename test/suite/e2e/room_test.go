package e2e

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/transport"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// lockLimit is a device that can register so many slabs at a time, as an adapter under a limit of locked memory can.
type lockLimit struct {
	transport.Device
	room atomic.Int32
}

func (d *lockLimit) Register(s *mem.Slab) error {
	if d.room.Add(-1) < 0 {
		d.room.Add(1)
		return mem.ErrNoRoom
	}
	return d.Device.Register(s)
}

func (d *lockLimit) Unregister(s *mem.Slab) error {
	d.room.Add(1)
	return d.Device.Unregister(s)
}

// Requests that hold all the memory that may be locked may wait for a path to come back: the next login has what the last connection had,
// also where other requests waited for memory when that was lost.
func TestALoginWaitsForNoRequestWhereNoMoreMemoryMayBeLocked(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s := newStand(t, iwarp.Options{})
			r := newRelay(t, s.Portal("127.0.0.1", 1))
			fabric := iwarp.New(iwarp.Options{})
			dev := &lockLimit{Device: fabric}
			dev.room.Store(3) // for small buffers, those of connections, and those of requests
			i, err := block.New(block.Options{Device: dev, MinBackoff: 1e6, MaxBackoff: 1e7, ReconnectLimit: patience})
			must(t, err)
			t.Cleanup(func() { must(t, errors.Join(i.Close(), fabric.Close())) })
			v := open(t, i, url(scheme, r.addr()))
			var held []*mem.Buf
			for _, size := range []int{1 << 20, 256 << 10, 64 << 10, 16 << 10, 4 << 10} {
				for b, err := i.Memory().Get(size); ; b, err = i.Memory().Get(size) {
					if err != nil {
						break
					}
					held = append(held, b)
				}
			}
			// Another request waits for some.
			waits := i.Memory().Quota(mem.MaxBuf)
			if _, err := waits.Get(256 << 10); !errors.Is(err, mem.ErrNoMemory) {
				t.Fatalf("there is memory left: %v", err)
			}
			waits.Wait(func() {})
			r.cut(false)
			ctx, cancel := context.WithTimeout(context.Background(), patience/2)
			defer cancel()
			if err := v.Flush(ctx); err != nil {
				t.Errorf("after the connection was lost: %v", err)
			}
			waits.Close()
			for _, b := range held {
				b.Release()
			}
		})
	}
}

// Calls that copy much go on in the pieces that there are buffers for: where no more memory may be locked there may be no large ones at all.
func TestLongCallsGoOnInPiecesWhereNoMoreMemoryMayBeLocked(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			s := newStand(t, iwarp.Options{})
			fabric := iwarp.New(iwarp.Options{})
			dev := &lockLimit{Device: fabric}
			dev.room.Store(2) // for small buffers, and those of connections: as much as users may lock who are given no more
			i, err := block.New(block.Options{Device: dev})
			must(t, err)
			t.Cleanup(func() { must(t, errors.Join(i.Close(), fabric.Close())) })
			v := open(t, i, url(scheme, s.Portal("127.0.0.1", 1)))
			want, got := pattern(2<<20+512, 7), make([]byte, 2<<20+512)
			if n, err := v.WriteAt(want, 512); err != nil {
				t.Fatalf("%d bytes are written: %v", n, err)
			}
			if n, err := v.ReadAt(got, 512); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes are read, equal %v: %v", n, bytes.Equal(got, want), err)
			}
		})
	}
}
