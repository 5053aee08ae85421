// Package group waits for goroutines whose number is not known before.
package group

import "sync"

// Group is a sync.WaitGroup that may be waited for while more goroutines begin: those that wait are told when none runs. A
// WaitGroup forbids a first one beside Wait. The zero value is empty.
type Group struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0, nil where none waits
}

// Go runs f in a goroutine of the group.
func (g *Group) Go(f func()) {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
	go func() {
		defer g.ended()
		f()
	}()
}

func (g *Group) ended() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n--; g.n == 0 && g.none != nil {
		close(g.none)
		g.none = nil
	}
}

// Wait returns at a moment at which none of the group's goroutines runs.
func (g *Group) Wait() { <-g.None() }

// None is closed at such a moment.
func (g *Group) None() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if g.none == nil {
		g.none = make(chan struct{})
	}
	return g.none
}
