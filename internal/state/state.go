// Package state checks the lives of requests. A machine is one enumeration, declared with a sentence a state, and a table of
// what may follow what; a Machine's Move is the only place that assigns it.
//
// An illegal move is a defect of this program: of what moves, or of the table, which may know less than the code that moves. In tests
// Move panics. Elsewhere it tells the move on standard error, once a kind, with the stack, and goes on as if there were no table: one
// that is too narrow is no reason to end every session. Where going on would do harm it panics in every program: Must is for such moves,
// Ending for states behind which each would.
package state

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"sync"
)

const most = 32 // states of a machine

// Machine is the table of one enumeration, made once and never changed.
type Machine[S ~uint8] struct {
	name  string
	names []string
	next  [most][most]bool // of the state that is and the one that follows
	ends  [most]bool
}

// Next lists, by state, those that may follow it.
type Next[S ~uint8] map[S][]S

// New makes a machine of at most 32 states. names has one for each state, in order of its number; name is what has the state.
func New[S ~uint8](name string, names []string, next Next[S]) *Machine[S] {
	m := &Machine[S]{name: name, names: names}
	if len(names) > most {
		panic("state: " + name + " has too many states")
	}
	for from, all := range next {
		for _, to := range all {
			if int(to) >= len(names) {
				panic(fmt.Sprintf("state: %s has no state %d", name, to))
			}
			m.next[from][to] = true
		}
	}
	return m
}

// Ending says that nothing follows these states, and that what is touched behind them may be another's: memory that its owner has back.
// An illegal move out of one panics in every program.
func (m *Machine[S]) Ending(states ...S) *Machine[S] {
	for _, s := range states {
		if m.next[s] != [most]bool{} {
			panic("state: " + m.name + " goes on behind " + m.Name(s))
		}
		m.ends[s] = true
	}
	return m
}

// Move assigns to, which must be allowed behind what *s is. The lock that guards *s is the caller's to hold.
func (m *Machine[S]) Move(s *S, to S) {
	if !m.next[*s][to] { // of a data path: small enough to be inlined
		m.illegal(s, to)
	}
	*s = to
}

func (m *Machine[S]) illegal(s *S, to S) {
	e := IllegalError{What: m.name, From: m.Name(*s), To: m.Name(to)}
	if strict() || m.ends[*s] && to != *s {
		panic(&e)
	}
	tell(e)
}

// Strict is the variable of the environment that makes every illegal move panic: the Makefile sets it for the programs that tests start.
const Strict = "SLUICE_STRICT_STATES"

var (
	mu     sync.Mutex
	told             = make(map[IllegalError]bool)
	out    io.Writer = os.Stderr
	strict           = func() bool { return os.Getenv(Strict) != "" || flag.Lookup("test.v") != nil }
)

// tell says that a move was illegal, once a kind.
func tell(e IllegalError) {
	mu.Lock()
	defer mu.Unlock()
	if !told[e] {
		told[e] = true
		fmt.Fprintf(out, "%s; it goes on. Please report it with what follows:\n%s", e.Error(), debug.Stack())
	}
}

// Must is Move where going on would do harm, such as to memory that is in use again: an illegal one panics in every program.
func (m *Machine[S]) Must(s *S, to S) {
	if !m.next[*s][to] {
		panic(&IllegalError{What: m.name, From: m.Name(*s), To: m.Name(to)})
	}
	*s = to
}

// Ends reports whether s is one of Ending's.
func (m *Machine[S]) Ends(s S) bool { return m.ends[s] }

// May reports whether to may follow from.
func (m *Machine[S]) May(from, to S) bool { return m.next[from][to] }

// Name is the name of a state.
func (m *Machine[S]) Name(s S) string {
	if int(s) < len(m.names) {
		return m.names[s]
	}
	return fmt.Sprintf("state %d", s)
}

// Defect stands in all that is said of an illegal move, and of a panic that ended a connection: tests look for it in the logs of programs.
const Defect = "a defect of this program"

// IllegalError is what Move panics with, by pointer.
type IllegalError struct{ What, From, To string }

func (e *IllegalError) Error() string {
	return fmt.Sprintf("%s cannot go from %q to %q: %s", e.What, e.From, e.To, Defect)
}
