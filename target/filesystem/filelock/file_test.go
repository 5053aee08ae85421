package filelock

import (
	"testing"

	"pgregory.net/rapid"
)

// The table against a byte map: what each owner has of bytes 0 to 63.
func TestRangesAgainstAModel(t *testing.T) {
	const size = 64
	rapid.Check(t, func(t *rapid.T) {
		var f file
		var model [size]map[string]bool // owner -> exclusive
		for i := range model {
			model[i] = make(map[string]bool)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			owner := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "owner")
			start := rapid.Uint64Range(0, size-1).Draw(t, "start")
			end := rapid.Uint64Range(start, size-1).Draw(t, "end")
			if rapid.Bool().Draw(t, "unlock") {
				f.locks = f.without(&Lock{Owner: Owner{Name: owner}, Range: Range{start, end}})
				for i := start; i <= end; i++ {
					delete(model[i], owner)
				}
				continue
			}
			l := Lock{Owner: Owner{Name: owner}, Exclusive: rapid.Bool().Draw(t, "exclusive"), Range: Range{start, end}}
			free := true
			for i := start; i <= end; i++ {
				for o, ex := range model[i] {
					free = free && (o == owner || !ex && !l.Exclusive)
				}
			}
			if got := f.conflict(&l) == nil; got != free {
				t.Fatalf("%+v: free %v, the model says %v; %+v", l, got, free, f.locks)
			}
			if free {
				f.locks = f.with(l)
				for i := start; i <= end; i++ {
					model[i][owner] = l.Exclusive
				}
			}
		}
		var got [size]map[string]bool
		for i := range got {
			got[i] = make(map[string]bool)
		}
		for n, h := range f.locks {
			for i := h.Start; i <= h.End; i++ {
				if _, twice := got[i][h.Owner.Name]; twice {
					t.Fatalf("two ranges of one owner overlap: %+v", f.locks)
				}
				got[i][h.Owner.Name] = h.Exclusive
			}
			for k, o := range f.locks {
				if k != n && o.Owner == h.Owner && o.Exclusive == h.Exclusive && h.End+1 == o.Start {
					t.Fatalf("ranges that touch are not merged: %+v", f.locks)
				}
			}
		}
		for i := range model {
			if len(model[i]) != len(got[i]) {
				t.Fatalf("byte %d: %v, the model says %v", i, got[i], model[i])
			}
			for o, ex := range model[i] {
				if g, ok := got[i][o]; !ok || g != ex {
					t.Fatalf("byte %d: %v, the model says %v", i, got[i], model[i])
				}
			}
		}
	})
}

func TestRangeOf(t *testing.T) {
	for _, c := range [][3]uint64{{0, 0, ^uint64(0)}, {5, 1, 5}, {5, 10, 14}, {^uint64(0), 1, ^uint64(0)}, {^uint64(0), 2, ^uint64(0)}, {1, ^uint64(0), ^uint64(0)}} {
		r := RangeOf(c[0], c[1])
		if r != (Range{c[0], c[2]}) {
			t.Errorf("%d+%d is %v, and does not end at %d", c[0], c[1], r, c[2])
		}
		if n := r.Len(); n != 0 && RangeOf(c[0], n) != r || n == 0 && r.End != ^uint64(0) {
			t.Errorf("%v is %d long", r, n)
		}
	}
}
