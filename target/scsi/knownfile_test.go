package scsi

import (
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-storage/sluice/internal/mem"
)

// Of targets that are not served any more the latest have kept what hosts took their LUNs for, and one that was deleted just now is the
// latest; of those that are served all have.
func TestTheLatestTargetsThatHaveGoneAreRemembered(t *testing.T) {
	dir := t.TempDir()
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
	if err := Tidy(dir, []string{name(0)}); err != nil {
		t.Fatal(err)
	}
	for k := range maxGone + 3 {
		_, err := os.Stat(knownPath(dir, name(k)))
		if want := k != 2 && k != 3; (err == nil) != want {
			t.Errorf("target %d: %v", k, err)
		}
	}
}

// What hosts take the LUNs of a target for is there to guard them: where it cannot be read the target is served all the same, and for a
// while each host has to ask for a LUN's name before it writes to it, over restarts too.
func TestATargetIsServedWhereItsNoteOfHostsCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boot(t)
		dir := t.TempDir()
		var r *rig
		serve := func() {
			t.Helper()
			lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "vol0", StateDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			pool := mem.NewPool(16 << 20)
			target, err := NewTarget(TargetOptions{Name: "iqn.2026-01.example:t", Memory: pool, StateDir: dir})
			if err != nil {
				t.Fatal(err)
			}
			if err := target.AddLUN(0, lu); err != nil {
				t.Fatal(err)
			}
			r = &rig{t: t, lu: lu, target: target, pool: pool}
		}
		// writes says what becomes of writes of a session after it has heard of its login.
		writes := func(what string, id byte, open bool) *Nexus {
			t.Helper()
			n := r.target.NewNexus(NexusOptions{InitiatorName: "iqn.2026-01.example:i", ISID: [6]byte{0x40, 0, 0, 0, 0, id}, TargetPortGroup: 1, Memory: r.pool.Share(1 << 20)})
			r.run(n, nil, 0, "00 00 00 00 00 00")
			for range 3 {
				res := r.run(n, make([]byte, 512), 0, writeBlock0)
				if open && res.Status != StatusGood || !open && res.asc() != ASCLUNsChanged {
					t.Errorf("%s: a write ends with %v %04X", what, res.Status, res.asc())
				}
			}
			r.lu.background.Wait()
			return n
		}
		serve()
		writes("at first", 1, true)
		path := knownPath(dir, "iqn.2026-01.example:t")
		if err := os.WriteFile(path, []byte("not what was written"), 0o600); err != nil {
			t.Fatal(err)
		}
		serve()
		if b, err := os.ReadFile(path + ".unreadable"); err != nil || string(b) != "not what was written" {
			t.Errorf("%q is set aside, %v", b, err)
		}
		writes("the note is lost", 1, false)
		serve()
		n := writes("a start later", 1, false)
		if res := r.run(n, nil, 64, "12 01 83 00 40 00"); res.Status != StatusGood {
			t.Fatal(res.Status)
		}
		r.run(n, nil, 0, "00 00 00 00 00 00") // is told of its login now
		if res := r.run(n, make([]byte, 512), 0, writeBlock0); res.Status != StatusGood {
			t.Errorf("a host that has looked: %v %04X", res.Status, res.asc())
		}
		r.lu.background.Wait()
		serve()
		writes("a host that has looked, after a start", 1, true)
		writes("another host", 2, false)
		time.Sleep(doubtTime)
		writes("a while later", 3, true)
	})
}
