package ctxwatch

import (
	"context"
	"testing"
)

func TestTheEndOfTheLastContextIsHeardOf(t *testing.T) {
	kicks := make(chan struct{}, 4)
	w := New(func() { kicks <- struct{}{} })
	first, endFirst := context.WithCancel(context.Background())
	second, endSecond := context.WithCancel(context.Background())
	w.On(first)
	w.On(second)
	endFirst()
	if w.Ended() {
		t.Error("the end of a context that is not watched any more")
	}
	endSecond()
	<-kicks
	if !w.Ended() || len(kicks) != 0 {
		t.Errorf("ended %v, %d kicks too many", w.Ended(), len(kicks))
	}
	w.Off()
	w.On(context.Background())
	if w.Ended() {
		t.Error("a context that never ends has ended")
	}
}

func TestTheSameContextAgainCostsNothing(t *testing.T) {
	w := New(func() {})
	ctx, end := context.WithCancel(context.Background())
	defer end()
	if n := testing.AllocsPerRun(100, func() { w.On(ctx) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
