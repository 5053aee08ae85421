package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestTwoGuestsMeetAtTheBoard(t *testing.T) {
	b := newBoard()
	got := make(chan string)
	go func() {
		text, err := b.answer(t.Context(), "await", []string{"did1"})
		if err != nil {
			t.Error(err)
		}
		got <- text
	}()
	for _, note := range [][]string{{"do1", "ip", "link"}, {"did1", "0", "two", "words"}} {
		if _, err := b.answer(t.Context(), "tell", note); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case text := <-got:
		if text != "0 two words\n" {
			t.Errorf("the note says %q", text)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a note was left, and who waited for it was not told")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.answer(ctx, "await", []string{"never"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a note that never came: %v", err)
	}
	if _, err := b.answer(t.Context(), "tell", nil); err == nil {
		t.Error("a note without a name was taken")
	}
}

// The binaries with the verbs provider and those without are built apart: the lab must not show one and mean the other.
func TestBinariesWithTheVerbsProviderAreBuiltApart(t *testing.T) {
	chosen := []Scenario{
		{Name: "one", Files: []string{"sluiced", "sluice"}},
		{Name: "two", Files: []string{"sluice", "verbs.test"}, Verbs: true},
	}
	pkgs, tests := packages(chosen, false)
	if !slices.Equal(pkgs, []string{"./cmd/sluiced", "./cmd/sluice"}) || len(tests) != 0 {
		t.Errorf("without: %q, %q", pkgs, tests)
	}
	pkgs, tests = packages(chosen, true)
	if !slices.Equal(pkgs, []string{"./cmd/sluice"}) || !slices.Equal(tests, []string{"verbs.test"}) {
		t.Errorf("with: %q, %q", pkgs, tests)
	}
	l := &lab{bin: "/bin"}
	if a, b := l.binary(&chosen[0], "sluice"), l.binary(&chosen[1], "sluice"); a == b {
		t.Errorf("both are %s", a)
	}
	for _, s := range scenarios {
		for _, f := range slices.Concat(s.Files, s.Host) {
			if sources[f] == "" && suites[f] == "" {
				t.Errorf("%s wants %s, which nothing builds", s.Name, f)
			}
			if s.Verbs && len(s.Host) > 0 {
				t.Errorf("%s runs binaries with the verbs provider on the host", s.Name)
			}
		}
	}
}
