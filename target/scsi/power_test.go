package scsi

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
	"github.com/sluice-storage/sluice/mem"
)

// powerRig is a unit that is served again and again: by another daemon, on another boot.
type powerRig struct {
	t   *testing.T
	dir string
	r   *rig
}

func (p *powerRig) start(change ...func(*LUOptions)) {
	p.t.Helper()
	lu, err := NewLogicalUnit(func() LUOptions {
		o := LUOptions{Device: newDisk(1<<20, 512), Name: "vol0", StateDir: p.dir}
		for _, f := range change {
			f(&o)
		}
		return o
	}())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(lu.background.Wait)
	pool := mem.NewPool(16 << 20)
	target, err := NewTarget(TargetOptions{Name: "iqn.2026-01.example:t", Memory: pool})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := target.AddLUN(0, lu); err != nil {
		p.t.Fatal(err)
	}
	p.r = &rig{t: p.t, lu: lu, target: target, pool: pool}
}

// login makes a nexus of an initiator and returns what its first command is told.
func (p *powerRig) login(id byte) (*Nexus, ASC) {
	p.t.Helper()
	n := p.r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i" + string('0'+rune(id)), ISID: [6]byte{0x40, 0, 0, 0, 0, id}, TargetPortGroup: 1, Transport: "test"})
	res := p.r.run(n, nil, 0, "00 00 00 00 00 00")
	if res.key() != UnitAttention {
		p.t.Fatalf("the first command: %v", res.Status)
	}
	return n, res.asc()
}

// reads says that a login is told asc and goes on: the initiator has read the report.
func (p *powerRig) reads(what string, id byte, asc ASC) {
	p.t.Helper()
	n, got := p.login(id)
	if got != asc {
		p.t.Errorf("%s: initiator %d is told %04X, want %04X", what, id, got, asc)
	}
	if res := p.r.run(n, nil, 0, "00 00 00 00 00 00"); res.Status != StatusGood {
		p.t.Errorf("%s: then %v %04X", what, res.Status, res.asc())
	}
	n.Close(func() {})
	p.r.lu.background.Wait()
}

func boot(t *testing.T) func(string) {
	old := bootID
	t.Cleanup(func() { bootID = old })
	id := "first"
	bootID = func() string { return id }
	return func(s string) { id = s }
}

// Writes that a host has not flushed can be lost by another boot and on a medium in memory, not by
// an end of the daemon. What can be true is said until each initiator has it; what cannot is not said.
func TestPowerOnIsSaidWhereWritesCanBeLost(t *testing.T) {
	again := boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	p.start()
	p.reads("nothing is known", 1, ASCPowerOnOrReset)
	p.reads("nothing is known", 2, ASCPowerOnOrReset)
	p.reads("another login", 1, ASCNexusLoss)
	p.start()
	p.reads("another daemon", 1, ASCNexusLoss)
	again("second")
	p.start()
	p.reads("another boot", 1, ASCPowerOn)
	p.reads("another boot, another login", 1, ASCNexusLoss)
	p.start()
	p.reads("another boot, another daemon, told", 1, ASCNexusLoss)
	p.reads("another boot, another daemon, not told", 2, ASCPowerOn)
	p.start()
	p.reads("told at last", 2, ASCNexusLoss)
	// All was flushed at the end of the daemon: what a boot can lose is nothing.
	if err := p.r.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	p.r.lu.Close()
	again("third")
	p.start()
	p.reads("flushed before the boot", 1, ASCNexusLoss)
	again("fourth")
	p.start()
	p.reads("flushed before the boot before", 1, ASCPowerOn)
}

func TestPowerOnIsSaidAgainUntilItIsRead(t *testing.T) {
	again := boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	for _, want := range []ASC{ASCPowerOnOrReset, ASCPowerOn} {
		p.start()
		for range 2 {
			n, asc := p.login(1)
			if asc != want {
				t.Fatalf("told %04X, want %04X", asc, want)
			}
			n.Close(func() {}) // the response may never have arrived
		}
		p.start()
		// Nothing else hides it.
		n := p.r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i1", ISID: [6]byte{0x40, 0, 0, 0, 0, 1}, TargetPortGroup: 1})
		answer(t, manage(n, LogicalUnitReset, 0, 0), FunctionComplete)
		if res := p.r.run(n, nil, 0, "00 00 00 00 00 00"); res.asc() != want {
			t.Errorf("after a restart and a reset: %04X, want %04X", res.asc(), want)
		}
		p.r.run(n, nil, 0, "00 00 00 00 00 00")
		p.r.lu.background.Wait()
		again("second")
	}
}

func TestAMediumInMemoryLosesItsWritesWithTheDaemon(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	for range 2 {
		p.start(func(o *LUOptions) { o.Volatile = true })
		p.reads("a start", 1, ASCPowerOnOrReset)
		p.reads("another login", 1, ASCNexusLoss)
		p.r.lu.Close()
	}
}

// A unit that cannot flush at its end, or whose note fails, does not say that it is clean.
func TestAFlushThatFailsIsNoCleanEnd(t *testing.T) {
	again := boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	bad := newDisk(1<<20, 512)
	bad.fail = func(r *blockdev.Request) error {
		if r.Op == blockdev.Flush {
			return errors.New("broken")
		}
		return nil
	}
	p.start(func(o *LUOptions) { o.Device = bad })
	p.reads("nothing is known", 1, ASCPowerOnOrReset)
	p.r.lu.Close()
	again("second")
	p.start()
	p.reads("another boot", 1, ASCPowerOn)
}

// lossy is a disk that lost acknowledged writes before it was opened.
type lossy struct {
	*disk
	err error
}

func (l lossy) Lost() error   { return l.err }
func (l lossy) TakeLoss(bool) {}

// What the medium lost before the unit was served again is told like a loss of power, to each host that knew the unit, and
// once: also where the daemon starts again before a host comes back.
func TestALossOfTheMediumIsToldToEachHost(t *testing.T) {
	p := &powerRig{t: t, dir: t.TempDir()}
	with := func(err error) func(*LUOptions) {
		return func(o *LUOptions) { o.Device = lossy{newDisk(1<<20, 512), err} }
	}
	p.start(with(nil))
	for id := range byte(2) {
		p.reads("a host that is new", id, ASCPowerOnOrReset)
	}
	p.r.lu.background.Wait()
	p.start(with(blockdev.ErrMedium))
	p.reads("after the loss", 0, ASCPowerOn)
	p.reads("after the loss, again", 0, ASCNexusLoss)
	p.r.lu.background.Wait()
	p.start(with(nil))
	p.reads("a restart later", 1, ASCPowerOn)
	p.reads("a restart later", 0, ASCNexusLoss)
	p.r.lu.background.Wait()
}

// Each host that may have written hears of what the medium lost by a flush of its own that fails, once: another's flush is no
// report to it, and no other command of any host is, or a start of the daemon.
func TestTheFlushThatFailsForALossIsOwedToEachHost(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	with := func(err error) func(*LUOptions) {
		return func(o *LUOptions) { o.Device = lossy{newDisk(1<<20, 512), err} }
	}
	const flush, readFUA, stop = "35 00 00000000 00 0000 00", "28 08 00000000 00 0001 00", "1b 00 00 00 00 00"
	flushes := func(what string, n *Nexus, want SenseKey) {
		t.Helper()
		if res := p.r.run(n, nil, 0, flush); res.key() != want {
			t.Errorf("%s: the flush ends with %v %X/%04X", what, res.Status, res.key(), res.asc())
		}
	}
	p.start(with(nil))
	for id := range byte(3) {
		p.reads("a host that is new", id, ASCPowerOnOrReset)
	}
	p.start(with(blockdev.ErrMedium))
	p.start(with(blockdev.ErrMedium))
	a := p.back(0, ASCPowerOn)
	for _, cdb := range []string{readFUA, stop} {
		if res := p.r.run(a, nil, 512, cdb); res.Status != StatusGood {
			t.Errorf("%s: %v %X/%04X", cdb, res.Status, res.key(), res.asc())
		}
	}
	flushes("the first host", a, MediumError)
	flushes("the first host, told", a, 0)
	p.r.lu.background.Wait()
	p.start(with(nil)) // the device keeps no note any more
	b := p.back(1, ASCPowerOn)
	flushes("the second host", b, MediumError)
	flushes("the second host, told", b, 0)
	flushes("the first host, told, another session", p.back(0, ASCNexusLoss), 0)
	flushes("a host that is new", p.back(9, ASCPowerOnOrReset), 0)
	flushes("the third host", p.back(2, ASCPowerOn), MediumError)
}

// A flush that has failed for a loss is a report to its host when that has read the response: who loses the session with it flushes again
// in the next one, and must not hear that all is durable. A request that is no command, as a logout, shows it too.
func TestTheFlushThatFailsForALossIsOwedUntilItIsRead(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	const flush = "35 00 00000000 00 0000 00"
	p.start()
	p.reads("a host that is new", 1, ASCPowerOnOrReset)
	p.start(func(o *LUOptions) { o.Device = lossy{newDisk(1<<20, 512), blockdev.ErrMedium} })
	session := func(what string, first ASC, want SenseKey) *Nexus {
		t.Helper()
		n := p.back(1, first)
		if res := p.r.run(n, nil, 0, flush); res.key() != want {
			t.Errorf("%s: the flush ends with %v %X/%04X", what, res.Status, res.key(), res.asc())
		}
		return n
	}
	session("the first time", ASCPowerOn, MediumError).Close(func() {})
	p.r.lu.background.Wait()
	n := session("the session was lost with the response", ASCNexusLoss, MediumError)
	n.Reads(0) // this one counts no responses
	n.Close(func() {})
	p.r.lu.background.Wait()
	session("the host has read it", ASCNexusLoss, 0).Close(func() {})
}

// Where the state cannot be written at the start the medium's note of a loss stays until it can: a host's flush that fails is no
// report to the others over the next start.
func TestALossIsNotForgottenWhereTheStateCannotBeWritten(t *testing.T) {
	boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	fail := failStorage(t, func() {})
	const flush = "35 00 00000000 00 0000 00"
	m := &noted{Device: newDisk(1<<20, 512)}
	with := func(o *LUOptions) { o.Device, m.owed = m, m.note }
	flushes := func(what string, id byte, first ASC) {
		t.Helper()
		p.r.lu.stopNow() // what cannot be written down is not tried for ever
		n := p.back(id, first)
		for _, want := range []SenseKey{MediumError, 0} {
			if res := p.r.run(n, nil, 0, flush); res.key() != want {
				t.Errorf("%s: the flush ends with %v %X/%04X", what, res.Status, res.key(), res.asc())
			}
		}
		p.r.lu.background.Wait()
	}
	p.start(with)
	p.reads("a host that is new", 1, ASCPowerOnOrReset)
	p.reads("a host that is new", 2, ASCPowerOnOrReset)
	m.note = blockdev.ErrMedium
	fail.Store(notSaved)
	p.start(with)
	flushes("the first host", 1, ASCPowerOn)
	if m.note == nil {
		t.Error("the medium has forgotten, and the state knows nothing")
	}
	p.start(with) // the daemon was killed
	fail.Store("")
	flushes("the first host, again, for it is not known that it was told", 1, ASCPowerOn)
	if m.note != nil {
		t.Error("the medium's note is there, and so is the state")
	}
	p.start(with)
	flushes("the second host", 2, ASCPowerOn)
}

// noted is a device that keeps the note of a loss, as the engine of files does.
type noted struct {
	blockdev.Device
	note error
	owed error
}

func (n *noted) Lost() error { return n.note }

func (n *noted) Submit(r *blockdev.Request) {
	if r.Op == blockdev.Flush && n.owed != nil {
		r.Err, n.owed, n.note = n.owed, nil, nil
		r.Done(r)
		return
	}
	n.Device.Submit(r)
}

func (n *noted) TakeLoss(written bool) {
	n.owed = nil
	if written {
		n.note = nil
	}
}

// A LUN that comes into sight after the login tells of a loss of power as one that was there.
func TestALUNThatComesLateTellsOfALossOfPower(t *testing.T) {
	again := boot(t)
	p := &powerRig{t: t, dir: t.TempDir()}
	p.start()
	p.reads("nothing is known", 1, ASCPowerOnOrReset)
	again("second")
	p.start()
	if err := p.r.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	n := p.r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i1", ISID: [6]byte{0x40, 0, 0, 0, 0, 1}, TargetPortGroup: 1})
	if err := p.r.target.AddLUN(0, p.r.lu); err != nil {
		t.Fatal(err)
	}
	var told []ASC
	for range 4 {
		if res := p.r.run(n, nil, 0, "00 00 00 00 00 00"); res.Status != StatusGood {
			told = append(told, res.asc())
		}
	}
	if !slices.Contains(told, ASCPowerOn) {
		t.Errorf("told %04X", told)
	}
}

// What the daemon does for itself takes from no host the flush that has to fail for a loss.
func TestAUnitThatClosesTakesNoReportOfALoss(t *testing.T) {
	p := &powerRig{t: t, dir: t.TempDir()}
	d := newDisk(1<<20, 512)
	p.start(func(o *LUOptions) { o.Device = lossy{d, blockdev.ErrMedium} })
	if err := p.r.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	p.r.lu.Close()
	if n := d.count(); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// A medium that has taken the place of another, as a backup that is restored does, has none of what was written to that one.
func TestAnotherMediumIsToldAsALossOfPower(t *testing.T) {
	p := &powerRig{t: t, dir: t.TempDir()}
	with := func(id string) func(*LUOptions) {
		return func(o *LUOptions) { d := newDisk(1<<20, 512); d.id, o.Device = id, d }
	}
	p.start(with("one"))
	p.reads("a host that is new", 1, ASCPowerOnOrReset)
	p.start(with("one"))
	p.reads("the same medium", 1, ASCNexusLoss)
	p.start(with("another"))
	p.reads("another medium", 1, ASCPowerOn)
	p.start(with("another"))
	p.reads("that one again", 1, ASCNexusLoss)
}

// The packaged unit has ProcSubset=pid (systemd.exec(5)), which hides /proc/sys: the service manager says then which boot it is, in
// another form. Where the kernel is heard, an environment that was carried over from an earlier boot cannot hide a loss of power.
func TestBootIsKnownWhereProcHidesIt(t *testing.T) {
	const boot = "0b5c2d1e-84aa-4f0c-9d3e-1a2b3c4d5e6f"
	hidden := filepath.Join(t.TempDir(), "boot_id")
	t.Setenv(bootEnv, strings.ReplaceAll(boot, "-", ""))
	if got := readBootID(hidden); got != boot {
		t.Errorf("%q of the service manager, want %q", got, boot)
	}
	t.Setenv(bootEnv, boot)
	if got := readBootID(hidden); got != boot {
		t.Errorf("%q of the environment, want %q", got, boot)
	}
	for _, wrong := range []string{"", "%b", strings.Repeat("0", 32), "0b5c2d1e84aa4f0c9d3e1a2b3c4d5e"} {
		t.Setenv(bootEnv, wrong)
		if got := readBootID(hidden); got != "" {
			t.Errorf("%q is taken from %q", got, wrong)
		}
	}
	t.Setenv(bootEnv, strings.Repeat("1", 32))
	if err := os.WriteFile(hidden, []byte(boot+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := readBootID(hidden); got != boot {
		t.Errorf("%q, want what the kernel says: %q", got, boot)
	}
}
