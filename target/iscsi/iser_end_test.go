package iscsi

import (
	"errors"
	"fmt"
	"testing"

	"github.com/sluice-storage/sluice/transport"
)

// The record of a session says what became of its connection: a port that went down is not the initiator's doing.
func TestAConnectionThatTheFabricLostWasNotClosedByTheInitiator(t *testing.T) {
	down := fmt.Errorf("rdma0: port 1 is down: %w: %w", transport.ErrLost, transport.ErrClosed)
	broken := &transport.TerminateError{Layer: transport.LayerDDP, Detail: "an STag that is none"}
	for _, c := range []struct {
		end, want error
	}{
		{transport.ErrClosed, errPeerClosed},
		{fmt.Errorf("%w by the peer", transport.ErrClosed), errPeerClosed},
		{down, down},
		{broken, broken},
	} {
		if got := (&iserDatamover{}).ended(c.end); !errors.Is(got, c.want) || errors.Is(got, errPeerClosed) != errors.Is(c.want, errPeerClosed) {
			t.Errorf("%v became %v", c.end, got)
		}
	}
}
