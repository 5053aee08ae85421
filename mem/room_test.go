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
		s, other := p.Quota(32<<20), p.Quota(32<<20)
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
	s := p.Quota(1 << 20)
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

// Which sizes were asked for first does not decide what there is room for: what nothing uses becomes what is wanted.
func TestEachSizeCanBeHadWhereAProviderHasNoRoom(t *testing.T) {
	for what, room := range map[string]int{"one slab": 1, "two slabs": 2} {
		p := NewPool(64 << 20)
		if err := p.OnSlab(&narrow{registrar: registrar{seen: map[uint32]int{}}, room: room}); err != nil {
			t.Fatal(err)
		}
		s := p.Quota(32 << 20)
		for round := range 3 {
			for _, n := range []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 64 << 10, 1 << 20, 4 << 10} {
				b, err := s.Get(n)
				if err != nil {
					t.Fatalf("%s, round %d: Get(%d): %v", what, round, n, err)
				}
				copy(b.Bytes(), "written")
				b.Release()
			}
			other := p.Quota(1 << 20)
			release(get(t, other, 64<<10))
			other.Close()
		}
		if st := p.Stats(); st.Mapped != int64(room)*SlabSize || st.Used != 0 {
			t.Errorf("%s: %+v", what, st)
		}
		s.Close()
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Memory in use is never made something else; a transfer goes on in pieces of the sizes there are.
func TestWhatIsInUseStaysWhatItIsWhereAProviderHasNoRoom(t *testing.T) {
	p := NewPool(64 << 20)
	if err := p.OnSlab(&narrow{registrar: registrar{seen: map[uint32]int{}}, room: 1}); err != nil {
		t.Fatal(err)
	}
	s := p.Quota(32 << 20)
	small, err := s.Get(4 << 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(1 << 20); !errors.Is(err, ErrNoRoom) {
		t.Errorf("a megabyte beside 4 KiB in use: %v", err)
	}
	if _, err := p.Quota(1 << 20).Get(64 << 10); !errors.Is(err, ErrNoRoom) {
		t.Errorf("64 KiB of another quota beside 4 KiB in use: %v", err)
	}
	all, err := s.GetAll(1<<20, nil)
	if err != nil {
		t.Fatalf("a megabyte in pieces: %v", err)
	}
	release(all)
	small.Release()
	if b, err := s.Get(1 << 20); err != nil {
		t.Errorf("a megabyte when nothing is in use: %v", err)
	} else {
		b.Release()
	}
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A pool that has grown before a provider with little room came shrinks to it: what was held once keeps nothing out for good.
func TestAPoolThatHasGrownShrinksToAProviderThatComes(t *testing.T) {
	p := NewPool(128 << 20)
	first := &registrar{seen: map[uint32]int{}}
	if err := p.OnSlab(first); err != nil {
		t.Fatal(err)
	}
	s := p.Quota(64 << 20)
	bufs := get(t, s, 10*SlabSize)
	late := &narrow{registrar: registrar{seen: map[uint32]int{}}, room: 3}
	if err := p.OnSlab(late); !errors.Is(err, ErrNoRoom) || late.known() != 0 {
		t.Fatalf("while all is in use: %v, %d slabs known", err, late.known())
	}
	release(bufs[1:])
	if err := p.OnSlab(late); err != nil {
		t.Fatal(err)
	}
	if st := p.Stats(); st.Mapped != 3*SlabSize || late.known() != 3 || first.known() != 3 || st.Used != int64(bufs[0].Len()) {
		t.Errorf("%+v; %d and %d slabs known", st, late.known(), first.known())
	}
	copy(bufs[0].Bytes(), "still there")
	more := get(t, s, 2*SlabSize)
	if _, err := s.GetAll(2*SlabSize, nil); !errors.Is(err, ErrNoMemory) {
		t.Errorf("beyond the room: %v", err)
	}
	release(more)
	release(bufs[:1])
	s.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if late.known() != 0 || first.known() != 0 {
		t.Errorf("%d and %d slabs known after Close", late.known(), first.known())
	}
}
