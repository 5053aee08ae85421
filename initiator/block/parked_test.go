package block

import (
	"errors"
	"testing"
	"testing/synctest"
)

// A session is over before its path is taken from those that commands go to. What is submitted in between waits for what comes
// after; it is not tried again and again until the stack is full.
func TestWhatASessionThatIsOverRefusesWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t)
		v := f.mustOpen(Options{}, "")
		s := v.paths[0].sess.Load()
		s.mu.Lock()
		s.dead, s.err = true, errors.New("it fails")
		s.mu.Unlock()
		done := goWrite(v, 3)
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("a write ends with the session that refused it: %v", err)
		default:
		}
		f.drop()
		for range 3 {
			if err := <-done; err != nil {
				t.Errorf("a write that no session has had: %v", err)
			}
		}
		closeAll(t, f, v)
	})
}
