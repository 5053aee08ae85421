package scsi

import (
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

// A nexus that ends may have a write with the medium: whatever fences it has to find it, at each moment.
func TestANexusThatEndsIsNeverOutOfSightOfAFence(t *testing.T) {
	r := newRig(t)
	i := &itl{nexus: r.n, lu: r.lu, id: nexusID{Initiator: "ends"}}
	r.lu.join(i)
	stop, missed := make(chan struct{}), make(chan bool, 1)
	go func() {
		defer close(missed)
		for {
			select {
			case <-stop:
				return
			default:
			}
			r.lu.mu.Lock()
			_, here := r.lu.itls[i]
			_, closing := r.lu.closing[i]
			r.lu.mu.Unlock()
			if !here && !closing {
				missed <- true
				return
			}
		}
	}()
	for range 20000 {
		r.lu.close(i)
		r.lu.join(i)
		r.lu.closed(i)
	}
	close(stop)
	if <-missed {
		t.Error("for a moment the unit did not know of a nexus that ends")
	}
}

// A LUN is taken away from a session that lives on, and before its commands are told another host resets the unit: they are
// told all the same, or their host would wait until it gives them up.
func TestWhatIsResetWhileItsLUNGoesIsTold(t *testing.T) {
	for round := range 20 {
		r := newRig(t)
		elsewhere, err := NewTarget(TargetOptions{Name: "iqn.2026-01.example:other", Memory: r.pool})
		if err != nil {
			t.Fatal(err)
		}
		second, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "second"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(second.background.Wait)
		if err := elsewhere.AddLUN(0, r.lu); err != nil {
			t.Fatal(err)
		}
		if err := r.target.AddLUN(1, second); err != nil {
			t.Fatal(err)
		}
		by := elsewhere.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:by", TargetPortGroup: 1})
		victim := r.nexus(2)
		i := victim.find(0)
		var reset chan TMFResponse
		armed := false
		for id := range byte(4) {
			r.nexus(3+id, func(o *NexusOptions) {
				o.Visible = func(uint16) bool {
					r.lu.mu.Lock()
					_, closing := r.lu.closing[i]
					r.lu.mu.Unlock()
					if armed && closing && reset == nil {
						reset = manage(by, LogicalUnitReset, 0, 0)
					}
					return true
				}
			})
		}
		hold(r.disk)
		c, h := r.start(victim, cdb(writeBlock0), make([]byte, 512), 0)
		<-r.disk.arrived
		armed = true
		if err := r.target.RemoveLUN(0); err != nil {
			t.Fatal(err)
		}
		r.disk.letGo()
		wait(t, "the write", h.done)
		if c.Silent || c.Status != StatusTaskAborted {
			t.Fatalf("round %d: silent %v, %v", round, c.Silent, c.Status)
		}
		if reset != nil {
			answer(t, reset, FunctionComplete)
			return
		}
	}
	t.Fatal("in 20 rounds the session was the last of its target")
}

// curious is a disk that hears of the question what it can do.
type curious struct {
	*disk
	asked func()
}

func (c *curious) Can(blockdev.Op) bool {
	if c.asked != nil {
		c.asked()
	}
	return true
}

// A unit attention that a command has taken and does not report, because another host aborts it just then, stays until it is
// reported (SAM-5 section 5.14); so a loss of power does not count as told, in this session and in later ones.
func TestALossOfPowerThatWasNotReportedIsReported(t *testing.T) {
	again := boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	p.start()
	p.reads("nothing is known", 1, ASCPowerOnOrReset)
	again("second")
	medium := &curious{disk: newDisk(1<<20, 512)}
	p.start(func(o *LUOptions) { o.Device = medium })
	opt := NexusOptions{InitiatorName: "iqn.2026-01.example:i1", ISID: [6]byte{0x40, 0, 0, 0, 0, 1}, TargetPortGroup: 1}
	n := p.r.target.NewNexus(opt)
	reset := make(chan TMFResponse, 1)
	other := p.r.nexus(2)
	medium.asked = func() { // while the command is on its way to be told
		medium.asked = nil
		other.Manage(LogicalUnitReset, 0, 0, func(r TMFResponse) { reset <- r })
	}
	res := p.r.run(n, make([]byte, 8), 0, "42 00 00 00 00 00 00 0008 00") // UNMAP
	answer(t, reset, FunctionComplete)
	if res.Status != StatusTaskAborted {
		t.Fatalf("UNMAP: %v %04X", res.Status, res.asc())
	}
	if res := p.r.run(n, nil, 4, "03 00 00 00 04 00"); res.Status != StatusGood {
		t.Errorf("REQUEST SENSE with little room: %v", res.Status)
	}
	if res := p.r.run(n, nil, 0, "00 00 00 00 00 00"); res.asc() != ASCPowerOn {
		t.Errorf("then %v %04X, want POWER ON", res.Status, res.asc())
	}
	n.Close(func() {})
	p.reads("another login", 1, ASCPowerOn)
}

// A T10 designator has 20 bytes in a descriptor: where that is the beginning of several, none is copied to.
func TestACopyToAUnitThatCouldBeAnotherIsRefused(t *testing.T) {
	r := newRig(t, func(o *LUOptions) { o.Serial = "PRODUCTION-DB-01" })
	second, err := NewLogicalUnit(LUOptions{Device: newDisk(8<<20, 512), Name: "second", Serial: "PRODUCTION-DB-02"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(second.background.Wait)
	t10 := append(padded(nil, "SLUICE", 8), "PRODUCTION-D"...)
	if res := r.xcopyTo(2, 1, 0, 8, 1, t10); res.Status != StatusGood {
		t.Errorf("where there is one: %v %04X", res.Status, res.asc())
	}
	if err := r.target.AddLUN(1, second); err != nil {
		t.Fatal(err)
	}
	r.run(r.n, nil, 0, "00 00 00 00 00 00")
	for range 20 {
		if res := r.xcopyTo(2, 1, 0, 8, 1, t10); res.key() != CopyAborted || res.asc() != ASCCopyTargetUnreachable {
			t.Fatalf("where there are two: %v %04X", res.Status, res.asc())
		}
	}
}
