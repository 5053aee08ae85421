package group

import (
	"sync/atomic"
	"testing"
)

// Goroutines may begin while others wait: what a WaitGroup calls misuse, and the race detector a race.
func TestAGroupIsWaitedForWhileMoreBegins(t *testing.T) {
	for range 200 {
		var g Group
		var ran atomic.Int32
		begun := make(chan struct{})
		go func() {
			defer close(begun)
			for range 10 {
				g.Go(func() { ran.Add(1) })
			}
		}()
		for range 10 {
			g.Wait()
		}
		<-begun
		g.Wait()
		if n := ran.Load(); n != 10 {
			t.Fatalf("%d of 10 have run", n)
		}
	}
}

func TestAGroupEndsWithTheLast(t *testing.T) {
	var g Group
	one, two := make(chan struct{}), make(chan struct{})
	g.Go(func() { <-one })
	none := g.None()
	g.Go(func() { <-two })
	close(one)
	select {
	case <-none:
		t.Fatal("it has ended, and one runs")
	default:
	}
	close(two)
	<-none
	g.Wait()
}
