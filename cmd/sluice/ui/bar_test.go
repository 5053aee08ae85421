package ui

import (
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestABarOfUnknownLengthIsDrawnByThoseWhoAddToItAlone lasts longer than the library's interval of a spinner,
// so that the race detector sees what its own goroutine would do.
func TestABarOfUnknownLengthIsDrawnByThoseWhoAddToItAlone(t *testing.T) {
	defer goleak.VerifyNone(t)
	bar := Bar(io.Discard, -1)
	var adders sync.WaitGroup
	for range 4 {
		adders.Go(func() {
			for end := time.Now().Add(250 * time.Millisecond); time.Now().Before(end); {
				if err := bar.Add(1); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	adders.Wait()
}
