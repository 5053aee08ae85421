package scsi

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// srpNexus is a nexus of SRP by a target port.
func (r *rig) srpNexus(id byte, port uint16) *Nexus {
	p := SRPPorts{Initiator: SRPPort{15: id}, Target: SRPPort{8: 2, 15: byte(port)}}
	return r.nexus(id, func(o *NexusOptions) {
		o.InitiatorName, o.SRP, o.TargetPortGroup = p.Initiator.Name(), &p, port
	})
}

// An initiator port can come only by a target port of its protocol: for no other can it be registered.
func TestRegistrationsKeepToTheProtocol(t *testing.T) {
	r := newRig(t)
	other := r.nexus(2)
	far := r.srpNexus(3, 2)
	iscsiID, srpID := transportID(other.port), srpTransportID(far.port)
	refused := func(what string, res result) {
		t.Helper()
		if res.Status != StatusCheckCondition || res.asc() != ASCInvalidFieldInParameters {
			t.Errorf("%s: %v %04X", what, res.Status, res.asc())
		}
	}
	refused("SPEC_I_PT of SRP by a port of iSCSI", r.pr(r.n, prRegister, 0, 0, 5, 8, srpID...))
	refused("SPEC_I_PT of iSCSI by a port of SRP", r.pr(far, prRegister, 0, 0, 5, 8, iscsiID...))
	if k := r.keys(r.n); len(k) != 0 {
		t.Errorf("keys %v", k)
	}
	r.mustPR(r.n, prRegister, 0, 0, 5, 8|4, srpID...) // each by the one port of its protocol
	if k := r.keys(r.n); !slices.Equal(k, []uint64{5, 5}) {
		t.Errorf("keys %v", k)
	}
	r.mustPR(r.n, prReserve, prWriteExclusive, 5, 0, 0)
	move := func(port uint16, id []byte) result {
		list := make([]byte, 24, 64)
		binary.BigEndian.PutUint64(list, 5)
		binary.BigEndian.PutUint64(list[8:], 6)
		binary.BigEndian.PutUint16(list[18:], port)
		binary.BigEndian.PutUint32(list[20:], uint32(len(id)))
		list = append(list, id...)
		return r.run(r.n, list, 0, "5f 07 01 00 00 00000000 00", put32(5, uint32(len(list))))
	}
	refused("REGISTER AND MOVE of SRP to a port of iSCSI", move(1, srpID))
	refused("REGISTER AND MOVE of iSCSI to a port of SRP", move(2, iscsiID))
	if key, _ := r.reservation(r.n); key != 5 {
		t.Errorf("the reservation is that of key %d", key)
	}
	if res := move(2, srpID); res.Status != StatusGood {
		t.Fatalf("%v %04X", res.Status, res.asc())
	}
	if key, _ := r.reservation(r.n); key != 6 {
		t.Errorf("the reservation is that of key %d", key)
	}
}

// A group that was SRP's and is that of an iSCSI portal now is named as such.
func TestAPortChangesItsProtocol(t *testing.T) {
	r := newRig(t)
	n := r.srpNexus(3, 2)
	gone := make(chan struct{})
	name := func() []byte {
		r.target.mu.Lock()
		defer r.target.mu.Unlock()
		return r.target.portDesignatorLocked(nil, 2)
	}
	was := name()
	n.Close(func() { close(gone) })
	<-gone
	r.nexus(4, func(o *NexusOptions) { o.TargetPortGroup = 2 })
	if now := name(); bytes.Equal(now, was) || !bytes.Contains(now, []byte(r.target.portName(2))) {
		t.Errorf("the port is named % X", now)
	}
}
