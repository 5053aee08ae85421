package faults

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/internal/iscsi"
)

// An RDMA Read that is never answered holds the buffers behind it. The session ends, though its pings are answered, and
// the one beside it stays.
func TestAnRDMAReadThatIsNeverAnsweredEndsItsSession(t *testing.T) {
	d, err := startWith(sluiced, t.TempDir(), false, "login: 5s, drain: 1s, peer: 2s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Errorf("%v\n%s", err, tail(d.Log()))
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rig := &d.Rig
	s, err := full(ctx, rig, true)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	q := s.command(rig, cdb(cdbWrite16, 0, 128))
	q.Write, q.EDTL = true, 128*sector
	if err := s.put(s.pdu(q), nil, advertise(true, false)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			if _, err := s.hear(); err != nil {
				return
			}
		}
	}()
	ping := time.NewTicker(200 * time.Millisecond)
	defer ping.Stop()
	for end := false; !end; {
		select {
		case <-ping.C:
			// An answer to a ping has no task tag, and says that the host is there.
			_ = s.put(s.pdu(&iscsi.NopOut{Immediate: true, ITT: iscsi.Reserved, TTT: 1, CmdSN: s.cmdSN}), nil, iscsi.ISERHeader{})
		case <-ended:
			end = true
		case <-ctx.Done():
			t.Fatalf("the session goes on\n%s", tail(d.Log()))
		}
	}
	if err := d.Alive(); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(d.Log(), "moves none of the data") { // it is written after the end
		select {
		case <-ping.C:
		case <-ctx.Done():
			t.Fatalf("it ended for another reason\n%s", tail(d.Log()))
		}
	}
	if other, err := full(ctx, rig, true); err != nil {
		t.Fatal(err)
	} else {
		other.close()
	}
}
