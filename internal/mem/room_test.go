package mem

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// narrow is a provider that may register so many slabs.
type narrow struct {
	registrar
	room, asked int
}

func (r *narrow) Register(s *Slab) error {
	if r.asked++; r.known() >= r.room {
		return fmt.Errorf("ulimit -l: %w", ErrNoRoom)
	}
	return r.registrar.Register(s)
}

// A provider that has no room for more memory is a bound like the pool's own: a Get waits for what comes back.
func TestGetWaitsWhereAProviderHasNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewPool(64 << 20)
		r := &narrow{registrar: registrar{seen: map[uint32]int{}}, room: 2}
		if err := p.OnSlab(r); err != nil {
			t.Fatal(err)
		}
		s, other := p.Share(32<<20), p.Share(32<<20)
		bufs := get(t, s, 2*SlabSize)
		for range 100 {
			if _, err := other.GetAll(MaxBuf, nil); !errors.Is(err, ErrNoMemory) {
				t.Fatalf("a Get without room: %v", err)
			}
		}
		if r.asked != 3 {
			t.Errorf("the provider was asked for room %d times", r.asked)
		}
		ready := make(chan struct{})
		other.Wait(func() { close(ready) })
		release(bufs)
		<-ready
		all := get(t, other, MaxBuf)
		if len(all) != 1 {
			t.Errorf("%d buffers", len(all))
		}
		// And room that comes is taken.
		bufs = get(t, s, 2*SlabSize-MaxBuf)
		r.room = 3
		time.Sleep(fullTime)
		more := get(t, s, MaxBuf)
		release(bufs)
		release(more)
		release(all)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Where there is nothing that could come back, waiting would have no end.
func TestGetSaysThatThereIsNoRoomForAnything(t *testing.T) {
	p := NewPool(64 << 20)
	if err := p.OnSlab(&narrow{registrar: registrar{seen: map[uint32]int{}}}); err != nil {
		t.Fatal(err)
	}
	s := p.Share(1 << 20)
	for what, get := range map[string]func() error{
		"Get":    func() error { _, err := s.Get(4096); return err },
		"GetAll": func() error { _, err := s.GetAll(MaxBuf, nil); return err },
	} {
		if err := get(); !errors.Is(err, ErrNoRoom) || errors.Is(err, ErrNoMemory) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
