package e2e

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/initiator/block"
	"github.com/sluice-storage/sluice/mem"
	"github.com/sluice-storage/sluice/target/iscsi"
	"github.com/sluice-storage/sluice/transport/iwarp"
)

// idleMemory is what a session may hold of registered memory once it has nothing to do, however wide its command window was
// opened: the first piece of its receives and a page of responses.
const idleMemory = 20 << 10

func TestASessionGivesBackItsMemoryWhenItFallsIdle(t *testing.T) {
	s := newStand(t, iwarp.Options{})
	srv, err := iscsi.NewServer(iscsi.Options{Memory: s.pool, Device: s.rnic, Timeouts: iscsi.Timeouts{Peer: 4 * time.Second, Drain: time.Second}})
	must(t, err)
	must(t, srv.AddTarget(iscsi.Target{Name: iqn, SCSI: s.scsi}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(context.Background(), l, iscsi.Portal{Group: 1}) }()
	t.Cleanup(func() {
		_ = srv.Close(context.Background()) // initiators are gone by then or are cut
		must(t, <-done)
	})
	v := open(t, host(t, block.Options{}, iwarp.Options{}), url("iser", l.Addr().String()))
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
	ss := srv.Sessions()
	if len(ss) != 1 || ss[0].Window < 16 {
		t.Fatalf("the window did not open: %+v", ss)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // the session's own ticks decide
		ss := srv.Sessions()
		if st := s.pool.Stats(); len(ss) == 1 && st.Used+st.Cached <= idleMemory {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("an idle session still holds %d bytes and keeps %d", st.Used, st.Cached)
		}
	}
	got := make([]byte, size)
	_, err = v.ReadAt(got, 0) // and it works as before
	must(t, err)
}
