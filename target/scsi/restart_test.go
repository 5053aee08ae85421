package scsi

import (
	"slices"
	"testing"
)

// back is the nexus of an initiator that has read what it is told at its login.
func (p *powerRig) back(id byte, want ASC) *Nexus {
	p.t.Helper()
	n, asc := p.login(id)
	if asc != want {
		p.t.Errorf("initiator %d is told %04X, want %04X", id, asc, want)
	}
	if res := p.r.run(n, nil, 0, "00 00 00 00 00 00"); res.Status != StatusGood {
		p.t.Fatalf("then %v %04X", res.Status, res.asc())
	}
	p.r.lu.background.Wait()
	return n
}

const writeBlock0 = "2a 00 00000000 00 0001 00"

// An end of the daemon is no loss of power: reservations and registrations stay as they were, with APTPL or without (SPC-4
// section 5.13.5), and a host that was fenced stays out. After another boot those without APTPL are gone, and then no host is
// told that they are as they were.
func TestARestartInOneBootKeepsReservations(t *testing.T) {
	for _, clean := range []bool{false, true} {
		again := boot(t)
		p := &powerRig{t: t, dir: t.TempDir()}
		stop := func() {
			if clean {
				if err := p.r.target.RemoveLUN(0); err != nil {
					t.Fatal(err)
				}
				p.r.lu.Close()
			}
		}
		p.start()
		a, b := p.back(1, ASCPowerOnOrReset), p.back(2, ASCPowerOnOrReset)
		p.r.mustPR(a, prRegister, 0, 0, 1, 0)
		p.r.mustPR(b, prRegister, 0, 0, 2, 0)
		p.r.mustPR(a, prReserve, prWriteExclusiveRO, 1, 0, 0)
		p.r.mustPR(a, prPreempt, prWriteExclusiveRO, 1, 2, 0)
		generation := p.r.run(a, nil, 8, "5e 00 00 00 00 00 00 0008 00").in[:4]
		for range 2 {
			stop()
			p.start()
			a, b = p.back(1, ASCNexusLoss), p.back(2, ASCNexusLoss)
			if got := p.r.run(b, make([]byte, 512), 0, writeBlock0).Status; got != StatusReservationConflict {
				t.Errorf("clean %v: a host that was fenced writes after a restart: %v", clean, got)
			}
			if got := p.r.run(a, make([]byte, 512), 0, writeBlock0).Status; got != StatusGood {
				t.Errorf("clean %v: the holder: %v", clean, got)
			}
			sameBytes(t, "generation", p.r.run(a, nil, 8, "5e 00 00 00 00 00 00 0008 00").in[:4], generation)
		}
		stop()
		again("second")
		p.start()
		want := ASCPowerOn
		if clean {
			want = ASCPowerOnOrReset
		}
		a = p.back(1, want)
		if k := p.r.keys(a); len(k) != 0 {
			t.Errorf("clean %v: keys %v without APTPL after another boot", clean, k)
		}
		again("first")
		p.start() // what was dropped does not come back
		if k := p.r.keys(p.back(1, ASCPowerOn)); len(k) != 0 {
			t.Errorf("clean %v: keys %v came back", clean, k)
		}
	}
}

// A medium in memory loses its power with the daemon, and what lasts as long as that goes with it.
func TestAMediumInMemoryForgetsReservationsWithTheDaemon(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	volatile := func(o *LUOptions) { o.Volatile = true }
	p.start(volatile)
	p.r.mustPR(p.back(1, ASCPowerOnOrReset), prRegister, 0, 0, 1, 0)
	p.start(volatile)
	n := p.back(1, ASCPowerOnOrReset)
	if k := p.r.keys(n); len(k) != 0 {
		t.Errorf("keys %v", k)
	}
	p.r.mustPR(n, prRegister, 0, 0, 2, 1)
	p.start(volatile)
	if k := p.r.keys(p.back(1, ASCPowerOnOrReset)); !slices.Equal(k, []uint64{2}) {
		t.Errorf("keys %v, want the one with APTPL", k)
	}
}

// Mode pages that were not saved are current until a reset or a loss of power (SPC-4 section 6.9), not until the daemon ends.
func TestARestartInOneBootKeepsModePages(t *testing.T) {
	again := boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	p.start()
	protect := []byte{0, 0, 0, 0, 0x0A, 10, 0x20, 0x10, 0x08, 0x40, 0, 0, 0xFF, 0xFF, 0, 0} // SWP, without SP
	n := p.back(1, ASCPowerOnOrReset)
	if res := p.r.run(n, protect, 0, "15 10 00 00 10 00"); res.Status != StatusGood {
		t.Fatal(res.Status)
	}
	writes := func(what string, n *Nexus, want ASC) {
		t.Helper()
		if res := p.r.run(n, make([]byte, 512), 0, writeBlock0); res.asc() != want {
			t.Errorf("%s: %v %04X, want %04X", what, res.Status, res.asc(), want)
		}
	}
	p.start()
	n = p.back(1, ASCNexusLoss)
	writes("after a restart", n, ASCSoftwareWriteProtected)
	answer(t, manage(n, LogicalUnitReset, 0, 0), FunctionComplete)
	p.start()
	n = p.back(1, ASCNexusLoss)
	writes("after a reset and a restart", n, 0)
	if res := p.r.run(n, protect, 0, "15 10 00 00 10 00"); res.Status != StatusGood {
		t.Fatal(res.Status)
	}
	if err := p.r.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	p.r.lu.Close()
	again("second")
	p.start()
	writes("after another boot", p.back(1, ASCPowerOnOrReset), 0)
}

// A change of reservations is seen when it is durable. Where it cannot be made so it was never seen, and a restart does not
// bring it either.
func TestReservationsAreSeenWhenTheyAreDurable(t *testing.T) {
	for _, aptpl := range []byte{0, 1} {
		dir := t.TempDir()
		state := func(o *LUOptions) { o.StateDir = dir }
		r := newRig(t, state)
		b := r.nexus(2)
		r.lu.background.Wait()
		r.mustPR(r.n, prRegister, 0, 0, 1, aptpl)
		r.mustPR(r.n, prReserve, prWriteExclusive, 1, 0, 0)
		tries := 0
		fail := failStorage(t, func() {
			tries++
			if got := r.run(b, make([]byte, 512), 0, writeBlock0).Status; got != StatusReservationConflict {
				t.Errorf("APTPL %d: a write between a change and its end: %v", aptpl, got)
			}
		})
		fail.Store(savedStill)
		if got := r.pr(r.n, prRelease, prWriteExclusive, 1, 0, 0); got.Status != StatusCheckCondition || tries == 0 {
			t.Errorf("APTPL %d: RELEASE that cannot be written down: %v", aptpl, got.Status)
		}
		fail.Store("")
		r = newRig(t, state)
		if key, kind := r.reservation(r.n); key != 1 || kind != prWriteExclusive {
			t.Errorf("APTPL %d: after a restart: %d of type %d", aptpl, key, kind)
		}
	}
}

// A state that cannot be written changes no mode page.
func TestAModePageThatCannotBeWrittenDownIsNotChanged(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, func(o *LUOptions) { o.StateDir = dir })
	r.lu.background.Wait()
	failStorage(t, func() {}).Store(notSaved)
	protect := []byte{0, 0, 0, 0, 0x0A, 10, 0x20, 0x10, 0x08, 0x40, 0, 0, 0xFF, 0xFF, 0, 0}
	for _, cmd := range []string{"15 10 00 00 10 00", "15 11 00 00 10 00"} {
		if got := r.run(r.n, protect, 0, cmd).Status; got != StatusCheckCondition {
			t.Errorf("MODE SELECT: %v", got)
		}
		if got := r.run(r.n, make([]byte, 512), 0, writeBlock0).Status; got != StatusGood {
			t.Errorf("a write after MODE SELECT failed: %v", got)
		}
	}
}
