package scsi

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

// noMedium is the device of a unit without a medium; nothing may be asked of it.
type noMedium struct{ t *testing.T }

func (n noMedium) Geometry() blockdev.Geometry {
	return blockdev.Geometry{Logical: 512, Physical: 4096}
}

func (n noMedium) Submit(r *blockdev.Request) {
	n.t.Errorf("the medium was asked to %v", r.Op)
	r.Err = blockdev.ErrMedium
	r.Done(r)
}

func (n noMedium) Close() error { return nil }

// A unit without a medium says so to whatever needs one, and what it is to who asks that (SPC-4 section 5.3).
func TestAUnitWithoutAMedium(t *testing.T) {
	r := newRig(t)
	lu, err := NewLogicalUnit(LUOptions{Device: noMedium{t}, Name: "away", NotReady: ASCMediumNotPresent, AllowSanitize: true, AllowFormat: true, StateDir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	if err := r.target.AddLUN(0, lu); err != nil {
		t.Fatal(err)
	}
	n := r.nexus(2)
	for _, c := range []string{
		"00 00 00 00 00 00", "28 00 00000000 00 0001 00", "25 00 00000000 00 0000 00", "35 00 00000000 00 0000 00",
		// What its state file has is not known (SPC-4 section 5.13): an empty table of registrations would be taken for a fence.
		"5e 00 00 00 00 00 00 0008 00", "5e 03 00 00 00 00 00 0008 00", "5f 06 00 00 00 00000018 00", "16 00 00 00 00 00", "56 00 00 00 00 00 00 0000 00",
		"15 10 00 00 10 00", "1b 00 00 00 01 00", "1b 00 00 00 00 00", "48 03 00 00 00 00 00 0000 00", "04 00 00 00 00 00", "2a 00 00000000 00 0001 00",
	} {
		if res := r.run(n, nil, 512, c); res.key() != NotReady || res.asc() != ASCMediumNotPresent {
			t.Errorf("%s: status %v, sense %X/%04X", c, res.Status, res.key(), res.asc())
		}
	}
	for _, c := range []string{"12 00 00 00 60 00", "12 01 83 00 ff 00", "a0 00 00 000000 00000040 00 00", "1a 00 3f 00 ff 00"} {
		if res := r.run(n, nil, 255, c); res.Status != StatusGood {
			t.Errorf("%s: status %v", c, res.Status)
		}
	}
	lu.MediumCame()
	if res := r.run(n, nil, 0, "00 00 00 00 00 00"); res.key() != UnitAttention || res.asc() != ASCMediumMayHaveChanged {
		t.Errorf("status %v, sense %04X", res.Status, res.asc())
	}
	lu.Close()
}
