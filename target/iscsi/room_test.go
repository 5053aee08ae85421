package iscsi

import (
	"fmt"
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/mem"
)

// Discovery needs no secret, and each such session over RDMA may hold locked memory of its own: where a connection finds no room for its
// memory they go, and are asked for again. Other sessions stay.
func TestDiscoverySessionsGoWhereNoMoreMemoryMayBeLocked(t *testing.T) {
	f := newTwinFixture(t)
	normal := f.dialISER(iscsi.CMPrivate(true))
	normal.enter()
	normal.ready()
	p := f.dialISER(iscsi.CMPrivate(true))
	if l, _ := p.step(iscsi.StageOperational, iscsi.StageFullFeature, true, "InitiatorName="+testInitiator, "SessionType=Discovery"); l.Status != 0 || !l.Transit {
		t.Fatalf("%+v", l)
	}
	f.srv.roomFor(mem.ErrNoMemory) // is waited for
	p.send(&iscsi.TextRequest{Final: true, ITT: 5, TTT: iscsi.Reserved, CmdSN: p.cmdSN}, nil, keys("SendTargets=All"))
	p.want(iscsi.OpTextResponse)
	f.srv.roomFor(fmt.Errorf("a slab: %w", mem.ErrNoRoom))
	p.wantEnd()
	normal.ready()
}
