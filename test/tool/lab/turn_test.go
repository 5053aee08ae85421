package main

import (
	"slices"
	"strings"
	"testing"
)

// Each scenario that takes turns has its turn, two at a time, beside all short ones.
func TestEachLongScenarioOfTheGateHasItsTurn(t *testing.T) {
	var takers, shorts []string
	for _, s := range scenarios {
		if s.Turn && s.Class != long {
			t.Errorf("%s takes turns and is %s", s.Name, s.Class)
		}
		if s.Turn {
			takers = append(takers, s.Name)
		}
		if s.Class == short {
			shorts = append(shorts, s.Name)
		}
	}
	if len(takers) < 4 {
		t.Fatalf("only %q take turns", takers)
	}
	seen := map[string]bool{}
	for turn := range len(takers) {
		l, chosen := gateOf(scenarios, turn)
		if len(chosen) != 2 || chosen[0] == chosen[1] {
			t.Errorf("turn %d is that of %q", turn, chosen)
		}
		var names []string
		for _, s := range l {
			names = append(names, s.Name)
		}
		if want := slices.Concat(chosen, shorts); !slices.Equal(names, want) {
			t.Errorf("turn %d runs %q, want %q", turn, names, want)
		}
		for _, c := range chosen {
			seen[c] = true
		}
	}
	for _, name := range takers {
		if !seen[name] {
			t.Errorf("%s never has its turn", name)
		}
	}
}

func TestTheTurnCanBeChosen(t *testing.T) {
	t.Setenv("LAB_TURN", "7")
	if turn, by, err := turnNow(t.Context()); turn != 7 || by != "LAB_TURN" || err != nil {
		t.Errorf("%d by %s, %v", turn, by, err)
	}
	t.Setenv("LAB_TURN", "next")
	if _, _, err := turnNow(t.Context()); err == nil || !strings.Contains(err.Error(), "LAB_TURN") {
		t.Errorf("a turn called next: %v", err)
	}
}
