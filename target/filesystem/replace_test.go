package filesystem

import (
	"sync"
	"testing"
)

// What replaces the exports at one time, or looks whether it could, closes each export once and leaves none open that is not served.
func TestExportsThatAreReplacedAtOneTimeAreClosedOnce(t *testing.T) {
	export := func(path string, dir string) Export { return Export{Path: path, Dir: dir} }
	a, b := t.TempDir(), t.TempDir()
	s, err := New(Options{}, export("/a", a))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []*Served
	note := func() {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, s.Exports()...)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				l := []Export{export("/a", a), export("/b", b)}[(g+i)%3%2:]
				if (g+i)%3 == 1 {
					l = l[:1]
				}
				var err error
				if g == 0 {
					err = s.Check(l...)
				} else {
					err = s.SetExports(l...)
				}
				if err != nil {
					t.Error(err)
				}
				note()
			}
		})
	}
	wg.Wait()
	if err := s.SetExports(export("/b", b)); err != nil {
		t.Fatal(err)
	}
	for _, e := range seen {
		want := int64(0)
		if s.Exports()[0] == e {
			want = 1
		}
		if n := e.users.Load(); n != want {
			t.Fatalf("export %s has %d users, not %d", e.Path, n, want)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
