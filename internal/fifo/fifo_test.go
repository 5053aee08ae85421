package fifo

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever is pushed, popped and trimmed: a ring is a FIFO, and trimmed it holds no more than it needs.
func TestRingIsAFIFO(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bound := rapid.IntRange(1, 100).Draw(t, "bound")
		r, next := New[int](bound), 0
		var model []int
		for range rapid.IntRange(0, 300).Draw(t, "steps") {
			switch k := rapid.IntRange(0, 9).Draw(t, "step"); {
			case k < 5 && !r.Full():
				*r.Push() = next
				model = append(model, next)
				next++
			case k < 9 && r.Len() > 0:
				if got := *r.Pop(); got != model[0] {
					t.Fatalf("popped %d, want %d", got, model[0])
				}
				model = model[1:]
			case k == 9:
				if r.Trim(); r.Room() >= 2*max(Start, 2*len(model)) {
					t.Fatalf("room for %d with %d in it", r.Room(), len(model))
				}
			}
			if r.Len() != len(model) || r.Full() != (len(model) == bound) {
				t.Fatalf("length %d, want %d of %d", r.Len(), len(model), bound)
			}
			for i, v := range model {
				if *r.At(i) != v {
					t.Fatalf("entry %d is %d, want %d", i, *r.At(i), v)
				}
			}
		}
	})
}

func TestAFullRingTakesNoMore(t *testing.T) {
	r := NewFixed[int](2)
	first := r.Push()
	r.Push()
	defer func() {
		if recover() == nil {
			t.Error("a third entry of two")
		}
		if first != r.At(0) {
			t.Error("an entry of a fixed ring has moved")
		}
	}()
	r.Push()
}
