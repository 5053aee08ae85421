package iscsi

import (
	"testing"

	"github.com/sluice-storage/sluice/internal/iscsi"
	"github.com/sluice-storage/sluice/target/scsi"
)

// A reservation of the old kind belongs to an I_T nexus and a logical unit (SPC-2 section 5.5.1): it ends when its holder is shown the
// unit no more, by the access list or because the LUN is unmapped.
func TestAReservationEndsWithItsHoldersSight(t *testing.T) {
	const other = "iqn.2026-11.dev.sluice:other-host"
	both := []Initiator{{Name: testInitiator}, {Name: other}}
	for _, c := range []struct {
		name string
		take func(*fixture) error
		back func(*fixture) error
	}{
		{"masked", func(f *fixture) error {
			return f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: []Initiator{{Name: testInitiator, LUNs: []uint16{7}}, {Name: other}}})
		}, func(*fixture) error { return nil }},
		{"unmapped", func(f *fixture) error { return f.st.RemoveLUN(0) }, func(f *fixture) error { return f.st.AddLUN(0, f.lu) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			must(t, f.srv.UpdateTarget(Target{Name: testTarget, SCSI: f.st, Initiators: both}))
			p := f.dial()
			p.login()
			p.ready()
			reserve := func(p *peer) byte {
				for range 8 {
					p.send(p.command([]byte{0x16, 0, 0, 0, 0, 0}), nil, nil)
					r := p.want(iscsi.OpSCSIResponse)
					if key, _ := sense(r); r.b[3] == byte(scsi.StatusCheckCondition) && key == 6 {
						p.send(p.command([]byte{0x12, 0, 0, 0, 0, 0}), nil, nil) // who asks again what the unit is knows it
						p.want(iscsi.OpSCSIResponse)
						continue
					}
					return r.b[3]
				}
				return 0xff
			}
			if st := reserve(p); st != 0 {
				t.Fatalf("RESERVE: status %02x", st)
			}
			must(t, c.take(f))
			must(t, c.back(f))
			q := f.dial()
			if l, _ := q.step(iscsi.StageOperational, iscsi.StageFullFeature, true, names(other, testTarget)...); l.Status != 0 {
				t.Fatalf("%+v", l)
			}
			if st := reserve(q); st != 0 {
				t.Errorf("status %02x: the unit is reserved for a host that is shown it no more", st)
			}
		})
	}
}
