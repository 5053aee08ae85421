package saves

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/sluice-storage/sluice/test/lib/storm"
)

// start has the n-th call of a start fail, and returns the calls that there were. The start may be refused; the next one, at which
// nothing fails, has all that there was.
func (s *stand) start(n int, errno syscall.Errno) (calls []string, hit bool) {
	s.t.Helper()
	s.n++
	k := s.n
	must(s.t, s.command("volume", "create", volume(k), "1MiB"))
	must(s.t, s.register(context.Background(), uint64(k)+1))
	s.health.CloseIdleConnections()
	s.d.Kill()
	s.logged = len(s.d.Log())
	f := &nth{n: n, err: errno, kill: func() { s.d.Signal(syscall.SIGKILL) }, hung: make(chan struct{}), free: make(chan struct{})}
	free := sync.OnceFunc(func() { close(f.free) })
	go func() {
		select {
		case <-f.hung:
			free()
		case <-f.free:
		}
	}()
	s.fs.Fault(f.call)
	err := s.d.TryStart()
	free()
	s.fs.Fault((&nth{n: -1}).call)
	calls, hit = f.result()
	what := fmt.Sprintf("a start, call %d of %v: %s", n, calls, name(errno))
	if err != nil && (n < 0 || errno == hangs || errno == syscall.EINTR) {
		s.t.Errorf("%s: %v", what, err)
	}
	s.restart(nil)
	if !s.says(volumes, volume(k)) {
		s.t.Errorf("%s: %v; a volume that was there is not", what, err)
	}
	if !slices.Contains(s.keys(), uint64(k)+1) {
		s.t.Errorf("%s: %v; a key that was registered is not", what, err)
	}
	if hit {
		storm.Count(s.t, "calls of starts failed", 1)
	}
	return calls, hit
}
