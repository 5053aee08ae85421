package mem

import (
	"errors"
	"testing"
)

// A denial is ErrNoMemory like any other: Wait ends it, and the request that was refused succeeds then.
func TestADroughtKeepsToTheContract(t *testing.T) {
	denied := 0
	SetDrought(&Drought{Max: 1, Deny: func(int) bool { denied++; return true }})
	p, later := NewPool(64<<20), (*Pool)(nil)
	SetDrought(nil)
	later = NewPool(64 << 20)
	s := p.Quota(4 << 20)
	if p.Stats().Max != minPool || later.Stats().Max != 64<<20 {
		t.Fatalf("pools of %d and %d bytes", p.Stats().Max, later.Stats().Max)
	}
	for range 3 {
		if _, err := s.Get(4096); !errors.Is(err, ErrNoMemory) {
			t.Fatal(err)
		}
		there := make(chan struct{})
		s.Wait(func() { close(there) })
		<-there
		b, err := s.Get(4096)
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	if denied != 3 {
		t.Errorf("%d denials", denied)
	}
	if b, err := later.Get(4096); err != nil {
		t.Error(err)
	} else {
		b.Release()
	}
	s.Close()
	if err := errors.Join(p.Close(), later.Close()); err != nil {
		t.Error(err)
	}
}
