package scsi

import (
	"encoding/binary"
	"testing"
)

// Initiator ports choose their own names: a unit that has met many forgets some, but none that is connected.
func TestPortsThatCameAndWentTakeNoMemoryForEver(t *testing.T) {
	r := newRig(t)
	for i := range 2 * maxMet {
		var isid [6]byte
		binary.BigEndian.PutUint32(isid[2:], uint32(i))
		n := r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-11.org.example:stranger", ISID: isid, TargetPortGroup: 1, Memory: r.pool.Quota(1 << 20)})
		for range 2 {
			r.run(n, nil, 0, "00 00 00 00 00 00")
		}
		n.Close(func() {})
	}
	r.target.mu.Lock()
	if known := len(r.target.known); known > maxMet+1 {
		t.Errorf("the target remembers what %d ports took its LUNs for", known)
	}
	r.target.mu.Unlock()
	r.lu.mu.Lock()
	n := len(r.lu.power.Heard)
	r.lu.mu.Unlock()
	if asc := r.lu.first(r.n.id()); n > maxMet || asc != ASCNexusLoss {
		t.Errorf("%d ports are remembered, the connected initiator would be told %04X", n, asc)
	}
}
