package scsi

import (
	"encoding/binary"
	"testing"
)

// Initiator ports choose their own names: a target that has met many forgets some, but none that is connected.
func TestPortsThatCameAndWentTakeNoMemoryForEver(t *testing.T) {
	r := newRig(t)
	for i := range 2 * maxMet {
		var isid [6]byte
		binary.BigEndian.PutUint32(isid[2:], uint32(i))
		r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-11.org.example:stranger", ISID: isid, TargetPortGroup: 1, Memory: r.pool.Share(1 << 20)}).Close(func() {})
	}
	r.target.mu.Lock()
	n, known := len(r.target.met), r.target.met[r.n.portKey()]
	r.target.mu.Unlock()
	if n > maxMet || !known {
		t.Errorf("%d ports are remembered, that of the connected initiator: %v", n, known)
	}
}
