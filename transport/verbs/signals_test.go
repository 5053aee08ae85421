//go:build verbs && cgo && linux

package verbs

import (
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A signal that comes while a connection is made changes nothing. Go's runtime sends them to its threads all the time; siw, which
// connects TCP within rdma_connect, would make the connection twice, and its listener would not live through that.
func TestSignalsDoNotDisturbAConnect(t *testing.T) {
	adapter(t)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for {
			tasks, err := os.ReadDir("/proc/self/task")
			if err != nil {
				t.Error(err)
				return
			}
			for _, task := range tasks {
				tid, _ := strconv.Atoi(task.Name())
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // the thread may be gone
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
				}
			}
		}
	}()
	defer func() {
		close(stop)
		<-over
	}()
	for range 20 {
		a, p, listener := pair(t)
		closePair(a, p, listener)
	}
}
