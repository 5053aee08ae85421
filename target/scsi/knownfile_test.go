package scsi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/mem"
)

// Of targets that are not served any more the latest have kept what hosts took their LUNs for, and one that was deleted just now is the
// latest; of those that are served all have.
func TestTheLatestTargetsThatHaveGoneAreRemembered(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state[1]")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := func(k int) string { return fmt.Sprintf("iqn.2026-01.example:t%d", k) }
	for k := range maxGone + 3 {
		old := time.Now().Add(time.Duration(k-10000) * time.Hour)
		if err := os.WriteFile(knownPath(dir, name(k)), []byte("{}"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(knownPath(dir, name(k)), old, old); err != nil {
			t.Fatal(err)
		}
	}
	for _, deleted := range []int{1, maxGone + 3} { // the last has no note
		if err := Forget(dir, name(deleted)); err != nil {
			t.Fatal(err)
		}
	}
	asides := func() int {
		l, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(l, func(e os.DirEntry) bool { return !strings.Contains(e.Name(), "unreadable") }))
	}
	for range maxAside + 2 { // damaged, one after the other
		path := knownPath(dir, name(maxGone+4))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := setAside(path); err != nil {
			t.Fatal(err)
		}
	}
	if n := asides(); n != maxAside+2 {
		t.Errorf("%d are set aside", n)
	}
	if err := Tidy(dir, []string{name(0)}); err != nil {
		t.Fatal(err)
	}
	if n := asides(); n != maxAside {
		t.Errorf("%d that were set aside are kept", n)
	}
	for k := range maxGone + 3 {
		_, err := os.Stat(knownPath(dir, name(k)))
		if want := k != 2 && k != 3; (err == nil) != want {
			t.Errorf("target %d: %v", k, err)
		}
	}
}

// notedRig is a target whose LUN 0 is served again and again.
type notedRig struct {
	*rig
	dir string
}

const notedTarget = "iqn.2026-01.example:t"

// serve begins again with a volume as LUN 0.
func (p *notedRig) serve(t *testing.T, volume string) {
	t.Helper()
	lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: volume, StateDir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(lu.background.Wait)
	pool := mem.NewPool(16 << 20)
	target, err := NewTarget(TargetOptions{Name: notedTarget, Memory: pool, StateDir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := target.AddLUN(0, lu); err != nil {
		t.Fatal(err)
	}
	p.rig = &rig{t: t, lu: lu, target: target, pool: pool}
}

// writes says what becomes of writes of a session after it has heard of its login.
func (p *notedRig) writes(what string, id byte, open bool) *Nexus {
	p.t.Helper()
	n := p.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i", ISID: [6]byte{0x40, 0, 0, 0, 0, id}, TargetPortGroup: 1, Memory: p.pool.Quota(1 << 20)})
	p.run(n, nil, 0, "00 00 00 00 00 00")
	for range 3 {
		res := p.run(n, make([]byte, 512), 0, writeBlock0)
		if open && res.Status != StatusGood || !open && res.asc() != ASCLUNsChanged {
			p.t.Errorf("%s: a write ends with %v %04X", what, res.Status, res.asc())
		}
	}
	p.lu.background.Wait()
	return n
}

// looks asks for the LUN's name, after which the session writes.
func (p *notedRig) looks(n *Nexus) {
	p.t.Helper()
	if res := p.run(n, nil, 64, "12 01 83 00 40 00"); res.Status != StatusGood {
		p.t.Fatal(res.Status)
	}
	p.run(n, nil, 0, "00 00 00 00 00 00") // is told of its login now
	if res := p.run(n, make([]byte, 512), 0, writeBlock0); res.Status != StatusGood {
		p.t.Errorf("a host that has looked: %v %04X", res.Status, res.asc())
	}
	p.lu.background.Wait()
}

// What hosts take the LUNs of a target for is there to guard them: where it cannot be read the target is served all the same, and for a
// while each host has to ask for a LUN's name before it writes to it, over restarts too.
func TestATargetIsServedWhereItsNoteOfHostsCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot(t)
		p := &notedRig{dir: t.TempDir()}
		p.serve(t, "vol0")
		p.writes("at first", 1, true)
		path := knownPath(p.dir, notedTarget)
		for _, damaged := range []string{"not what was written", "nor this"} {
			if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
				t.Fatal(err)
			}
			p.serve(t, "vol0")
		}
		for aside, damaged := range map[string]string{".unreadable": "not what was written", ".unreadable-2": "nor this"} {
			if b, err := os.ReadFile(path + aside); err != nil || string(b) != damaged {
				t.Errorf("%q is set aside, %v", b, err)
			}
		}
		p.writes("the note is lost", 1, false)
		p.serve(t, "vol0")
		p.looks(p.writes("a start later", 1, false))
		p.serve(t, "vol0")
		p.writes("a host that has looked, after a start", 1, true)
		p.writes("another host", 2, false)
		time.Sleep(doubtTime)
		p.writes("a while later", 3, true)
	})
}

// A clock that was years ahead when a note was damaged keeps hosts waiting no longer than another.
func TestDoubtEndsWhereTheClockWasAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot(t)
		p := &notedRig{dir: t.TempDir()}
		if err := writeDurably(knownPath(p.dir, notedTarget), &knownNote{Target: notedTarget, Doubt: time.Now().AddDate(10, 0, 0)}); err != nil {
			t.Fatal(err)
		}
		p.serve(t, "vol0")
		p.writes("in doubt", 1, false)
		time.Sleep(doubtTime)
		p.writes("a while later", 2, true)
	})
}

// A note that is good and cannot be read for a moment, as for want of a descriptor, is kept: hosts have to ask for a LUN's name until it is
// read, and those that it has go on being guarded by it.
func TestANoteOfHostsThatCannotBeReadForAMomentIsReadLater(t *testing.T) {
	boot(t)
	p := &notedRig{dir: t.TempDir()}
	p.serve(t, "vol0")
	p.writes("at first", 1, true)
	path := knownPath(p.dir, notedTarget)
	away := path + ".away"
	if err := errors.Join(os.Rename(path, away), os.Mkdir(path, 0o700)); err != nil { // reading a directory fails
		t.Fatal(err)
	}
	p.serve(t, "vol1")
	p.writes("the note cannot be read", 1, false)
	p.looks(p.writes("of no host", 2, false))
	if err := errors.Join(os.Remove(path), os.Rename(away, path)); err != nil {
		t.Fatal(err)
	}
	p.writes("a host that is new, and the note is read", 3, true)
	p.writes("a host that is in it", 1, false)
	p.serve(t, "vol1")
	p.writes("a start later", 1, false)
	p.writes("a host that has looked meanwhile", 2, true)
	p.writes("the one that was new", 3, true)
	if l, err := filepath.Glob(path + "?*"); err != nil || len(l) > 0 {
		t.Errorf("%v is there, %v", l, err)
	}
}

// A target that takes the place of another of its name, for its port groups have changed, is made while that is served: what hosts do meanwhile
// it knows all the same, over a restart too.
func TestATargetKnowsWhatHostsTookTheLUNsOfItsPredecessorFor(t *testing.T) {
	boot(t)
	p := &notedRig{dir: t.TempDir()}
	p.serve(t, "vol0")
	old, next := p.rig, &notedRig{dir: p.dir}
	next.serve(t, "vol1")
	p.writes("the target that goes", 1, true).Close(func() {})
	next.target.Succeed(old.target)
	next.writes("the target that came", 1, false)
	old.target.noteKnown(old.lu) // late
	old.lu.background.Wait()
	next.writes("another host", 2, true)
	next.serve(t, "vol1")
	next.writes("a start later", 1, false)
	next.writes("another host, later", 2, true)
}

// What could not be written down, for the disk was full for a while, is written later by itself: no other login may come before a restart.
func TestWhatHostsDidIsNotedWhenItCanBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		again := boot(t)
		p := &notedRig{dir: t.TempDir()}
		p.serve(t, "vol0")
		var fail *atomic.Value
		var saves atomic.Int32
		fail = failStorage(t, func() {
			if saves.Add(1) > 8 {
				fail.Store("")
			}
		})
		fail.Store(notSaved)
		id := p.writes("at first", 1, true).id()
		p.serve(t, "vol1")
		p.writes("the LUN is another", 1, false)
		again("second")
		p.serve(t, "vol0")
		if asc := p.lu.first(id); asc != ASCPowerOn {
			t.Errorf("after another boot it is told %04X", asc)
		}
	})
}

// An initiator that makes names without end has the target forget what it took LUNs for itself, and none of what another did that is away.
func TestNamesOfOneInitiatorPushOutNothingThatAnotherTookLUNsFor(t *testing.T) {
	boot(t)
	p := &notedRig{dir: t.TempDir()}
	p.serve(t, "vol0")
	p.writes("at first", 1, true).Close(func() {})
	for isid := range uint16(maxMet + 8) {
		p.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:flood", ISID: [6]byte{0x40, 0, 0, 0, byte(isid >> 8), byte(isid)}, TargetPortGroup: 1, Memory: p.pool.Quota(1 << 20)}).Close(func() {})
	}
	if err := p.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "vol1", StateDir: p.dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.target.AddLUN(0, lu); err != nil {
		t.Fatal(err)
	}
	p.lu = lu
	p.writes("the LUN is another", 1, false)
}

// A unit that is unmapped and closed while a note of its LUN cannot be written leaves that to another of the target: hosts have writes for
// it under way.
func TestANoteOutlivesTheUnitThatWasToWriteIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot(t)
		p := &notedRig{dir: t.TempDir()}
		p.serve(t, "vol0")
		other, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "vol1", StateDir: p.dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.target.AddLUN(1, other); err != nil {
			t.Fatal(err)
		}
		fail := failStorage(t, func() {})
		fail.Store(notSaved)
		n := p.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i", ISID: [6]byte{0x40, 0, 0, 0, 0, 1}, TargetPortGroup: 1, Memory: p.pool.Quota(1 << 20)})
		p.run(n, make([]byte, 512), 0, writeBlock0)
		n.Close(func() {})
		if err := p.target.RemoveLUN(0); err != nil {
			t.Fatal(err)
		}
		p.lu.Close()
		fail.Store("")
		other.background.Wait()
		p.serve(t, "vol2")
		p.writes("the LUN is another", 1, false)
	})
}

// A note that is damaged while its target is served puts nothing in doubt that the target knows, when another takes its place.
func TestATargetIsInNoDoubtOfWhatItsPredecessorKnows(t *testing.T) {
	boot(t)
	p := &notedRig{dir: t.TempDir()}
	p.serve(t, "vol0")
	p.writes("at first", 1, true).Close(func() {})
	if err := os.WriteFile(knownPath(p.dir, notedTarget), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := &notedRig{dir: p.dir}
	next.serve(t, "vol0")
	next.target.Succeed(p.target)
	next.writes("the target that came", 1, true)
	next.writes("a host that is new", 2, true)
}

// A target that is deleted notes at once what it could not before, and nothing after: one of its name that is made later begins with that.
func TestATargetThatIsDeletedHasTheLastWordBeforeItGoes(t *testing.T) {
	boot(t)
	p := &notedRig{dir: t.TempDir()}
	p.serve(t, "vol0")
	fail := failStorage(t, func() {})
	fail.Store(notSaved)
	n := p.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i", ISID: [6]byte{0x40, 0, 0, 0, 0, 1}, TargetPortGroup: 1, Memory: p.pool.Quota(1 << 20)})
	p.run(n, make([]byte, 512), 0, writeBlock0)
	n.Close(func() {})
	p.lu.stopNow()
	p.lu.background.Wait()
	fail.Store("")
	p.target.Retire()
	next := &notedRig{dir: p.dir}
	next.serve(t, "vol1")
	next.writes("the LUN is another", 1, false)
	next.writes("another host", 2, true)
	p.target.noteKnown(next.lu) // late
	next.lu.background.Wait()
	next.serve(t, "vol2")
	next.writes("another host, a start later", 2, false)
}
