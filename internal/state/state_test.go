package state

import (
	"os"
	"strings"
	"testing"
)

type light uint8

const (
	red light = iota
	green
	yellow
)

var lights = New("a light", []string{"red", "green", "yellow"}, Next[light]{red: {green}, green: {yellow}, yellow: {red}})

func TestMoveTakesWhatTheTableAllowsAndNothingElse(t *testing.T) {
	for from := red; from <= yellow; from++ {
		for to := red; to <= yellow; to++ {
			s := from
			var met any
			func() {
				defer func() { met = recover() }()
				lights.Move(&s, to)
			}()
			legal := to == (from+1)%3
			if lights.May(from, to) != legal || (met == nil) != legal || (s == to) != (legal || from == to) {
				t.Errorf("%s to %s: panic %v, now %s", lights.Name(from), lights.Name(to), met, lights.Name(s))
			}
			if e, is := met.(*IllegalError); met != nil && (!is || e.From != lights.Name(from) || e.To != lights.Name(to)) {
				t.Errorf("panic with %v", met)
			}
		}
	}
}

func TestMoveAllocatesNothing(t *testing.T) {
	s := red
	if n := testing.AllocsPerRun(100, func() { lights.Move(&s, (s+1)%3) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestProgramsGoOnAfterAnIllegalMoveAndTellItOnce(t *testing.T) {
	var said strings.Builder
	was, now := strict, func() bool { return false }
	out, strict = &said, now
	defer func() { out, strict = os.Stderr, was }()
	for range 2 {
		s := red
		lights.Move(&s, yellow)
		if s != yellow {
			t.Errorf("now %s", lights.Name(s))
		}
	}
	if n := strings.Count(said.String(), `a light cannot go from "red" to "yellow"`); n != 1 || !strings.Contains(said.String(), "TestProgramsGoOn") {
		t.Errorf("said %d times, or without the place:\n%s", n, said.String())
	}
}

// Behind an ending state memory may be in use again: every program panics, and what was the state still is.
func TestProgramsPanicAtAMoveOutOfAnEndingState(t *testing.T) {
	var said strings.Builder
	was, now := strict, func() bool { return false }
	out, strict = &said, now
	defer func() { out, strict = os.Stderr, was }()
	m := New("a wick", []string{"red", "green", "yellow"}, Next[light]{red: {green}, green: {yellow}}).Ending(yellow)
	s := yellow
	var met any
	func() {
		defer func() { met = recover() }()
		m.Move(&s, green)
	}()
	if e, is := met.(*IllegalError); !is || e.From != "yellow" || s != yellow || !strings.HasSuffix(e.Error(), Defect) {
		t.Errorf("out of an ending state: panic %v, now %s", met, m.Name(s))
	}
	s = red
	m.Move(&s, yellow) // illegal, out of another state
	if m.Move(&s, yellow); s != yellow || !m.Ends(yellow) || m.Ends(red) {
		t.Errorf("now %s", m.Name(s))
	}
	defer func() {
		if recover() == nil {
			t.Error("a state with one behind it is taken for an ending one")
		}
	}()
	New("a lamp", []string{"red", "green"}, Next[light]{red: {green}}).Ending(red)
}
