package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// gated is the class of what the gate runs: everything short, and two of those that take turns.
const gated = "gate"

// gateOf returns the gate's scenarios for a turn. Those of the turn come first: they take longest.
func gateOf(all []Scenario, turn int) (l []Scenario, chosen []string) {
	var takers []Scenario
	for _, s := range all {
		if s.Turn {
			takers = append(takers, s)
		}
	}
	for i := range min(2, len(takers)) { // neighbours are alike: they do not come together
		s := takers[(turn+i*len(takers)/2)%len(takers)]
		l, chosen = append(l, s), append(chosen, s.Name)
	}
	for _, s := range all {
		if s.Class == short {
			l = append(l, s)
		}
	}
	return l, chosen
}

// turnNow is LAB_TURN, or how many commits there are, so that a commit's gate can be run again as it was; the day where there
// is no repository.
func turnNow(ctx context.Context) (turn int, by string, err error) {
	if s := os.Getenv("LAB_TURN"); s != "" {
		if turn, err = strconv.Atoi(s); err != nil || turn < 0 {
			return 0, "", fmt.Errorf("LAB_TURN is %q and has to be a number from 0", s)
		}
		return turn, "LAB_TURN", nil
	}
	out, gerr := exec.CommandContext(ctx, "git", "rev-list", "--count", "HEAD").Output()
	if turn, err = strconv.Atoi(strings.TrimSpace(string(out))); gerr == nil && err == nil {
		return turn, "the number of commits", nil
	}
	return int(time.Now().Unix() / 86400), "the day", nil
}

// chooseGate says which scenarios have their turn.
func chooseGate(ctx context.Context, all []Scenario) ([]Scenario, error) {
	turn, by, err := turnNow(ctx)
	if err != nil {
		return nil, err
	}
	l, chosen := gateOf(all, turn)
	fmt.Printf("lab: turn %d by %s: %s; LAB_TURN=%d chooses them again\n", turn, by, cmp.Or(strings.Join(chosen, " and "), "nothing"), turn)
	return slices.Clip(l), nil
}
