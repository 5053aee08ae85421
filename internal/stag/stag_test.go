package stag

import (
	"testing"

	"pgregory.net/rapid"
)

// Whatever comes and goes, the table holds what a map would.
func TestATableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tab Table[int]
		tab.Init()
		model := map[uint32]*int{}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			// Few numbers, some of one home, so that probes meet and gaps close.
			s := uint32(rapid.IntRange(2, 40).Draw(t, "stag")) << rapid.SampledFrom([]uint{0, 28}).Draw(t, "shift")
			if s == 0 {
				continue
			}
			switch {
			case model[s] == nil:
				for tab.Room() <= len(model) {
					tab.AddRoom()
				}
				model[s] = new(int)
				tab.Insert(s, model[s])
			case rapid.Bool().Draw(t, "remove"):
				tab.Remove(s)
				delete(model, s)
			}
			if tab.Len() != len(model) {
				t.Fatalf("%d entries, want %d", tab.Len(), len(model))
			}
			for k, w := range model {
				if tab.Find(k) != w {
					t.Fatalf("STag %d is lost", k)
				}
			}
			seen := 0
			tab.All(func(*int) { seen++ })
			if seen != len(model) || model[s] == nil && tab.Find(s) != nil {
				t.Fatalf("%d entries seen of %d, or one that is gone is found", seen, len(model))
			}
		}
		tab.Clear()
		for k := range model {
			if tab.Find(k) != nil || tab.Len() != 0 {
				t.Fatal("something is left")
			}
		}
	})
}

func TestFreshSTagsAreRandomAndFree(t *testing.T) {
	var tab Table[int]
	tab.Init()
	seen := map[uint32]bool{}
	for range 1000 {
		s, base := tab.Fresh()
		if s <= 1 || seen[s] && tab.Find(s) != nil || base%4096 != 0 || base >= 1<<47 {
			t.Fatalf("STag %d, base %x", s, base)
		}
		seen[s] = true
		tab.AddRoom()
		tab.Insert(s, new(int))
	}
	if len(seen) != 1000 {
		t.Fatalf("%d of 1000 are different", len(seen))
	}
}
