package e2e

import (
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/test/lib/stand"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// idleMemory is what a session may hold of registered memory once it has nothing to do, however wide its command window was
// opened: the first piece of its receives and a page of responses.
const idleMemory = 20 << 10

func TestASessionGivesBackItsMemoryWhenItFallsIdle(t *testing.T) {
	s := stands(t, iwarp.Options{}, stand.BlockOptions{Server: iscsi.Options{Timeouts: iscsi.Timeouts{Peer: 4 * time.Second}}}, "e2e-idle")
	v := open(t, host(t, block.Options{}, iwarp.Options{}), url("iser", s.Portal("127.0.0.1", 1)))
	const n, size = 128, 4 << 10
	for range 4 { // each round doubles the window
		var wg sync.WaitGroup
		reqs := make([]blockdev.Request, n)
		for k := range reqs {
			b, err := v.Memory().Get(size)
			must(t, err)
			defer b.Release()
			reqs[k] = blockdev.Request{Op: blockdev.Write, Offset: int64(k) * size, Length: size, Data: []mem.Span{b.Span()}, Done: func(*blockdev.Request) { wg.Done() }}
			wg.Add(1)
		}
		for k := range reqs {
			v.Submit(&reqs[k])
		}
		wg.Wait()
	}
	ss := s.Server.Sessions()
	if len(ss) != 1 || ss[0].Window < 16 {
		t.Fatalf("the window did not open: %+v", ss)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // the session's own ticks decide
		ss := s.Server.Sessions()
		if st := s.Pool.Stats(); len(ss) == 1 && st.Used+st.Cached <= idleMemory {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("an idle session still holds %d bytes and keeps %d", st.Used, st.Cached)
		}
	}
	got := make([]byte, size)
	_, err := v.ReadAt(got, 0) // and it works as before
	must(t, err)
}
