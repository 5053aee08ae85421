package iscsi

import "testing"

// answersAtOnce is a datamover below commands that complete inside Execute.
type answersAtOnce struct{ datamover }

func (answersAtOnce) windowLocked(n int) int { return n }

// A reader of cached blocks never has commands in progress, as the target sees it; what it sends in one batch opens the
// window all the same, and an initiator that sends one at a time gets no more than it uses.
func TestWindowOpensForCommandsAnsweredAtOnce(t *testing.T) {
	for depth, want := range map[int]int{1: firstWindow, 3: firstWindow, 24: 32, 1000: 64} {
		s := &Server{}
		s.opt.Limits.Queue = 64
		c := &conn{srv: s, datamover: answersAtOnce{}, state: stateFull, window: firstWindow, expCmdSN: 1, maxCmdSN: firstWindow}
		for range 20 {
			c.cork()
			n := min(depth, int(c.maxCmdSN-c.expCmdSN)+1)
			for range n {
				c.expCmdSN++
				c.enteredLocked()
				c.active--
				c.openLocked()
			}
		}
		if c.window != want {
			t.Errorf("depth %d: a window of %d, expected %d", depth, c.window, want)
		}
		if c.peak != min(depth, want) {
			t.Errorf("depth %d: %d counted as the peak", depth, c.peak)
		}
	}
}
