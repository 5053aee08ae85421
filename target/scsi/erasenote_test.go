package scsi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-storage/sluice/blockdev"
)

const (
	tur       = "00 00 00 00 00 00"
	format    = "04 10 00 00 00 00"
	sanitize  = "48 a2 00 00 00 00 00 00 00 00" // IMMED, BLOCK ERASE
	sanitized = "48 22 00 00 00 00 00 00 00 00"
	exitMode  = "48 1f 00 00 00 00 00 00 00 00"
)

// eraseRig is a medium that is served again and again.
type eraseRig struct {
	*rig
	t    *testing.T
	disk *disk
	dir  string

	forbidden bool // erasing is not configured
}

func newEraseRig(t *testing.T) *eraseRig {
	e := &eraseRig{t: t, disk: newDisk(1<<20, 512), dir: t.TempDir()}
	e.disk.id = "medium"
	e.start()
	e.lu.background.Wait() // who has heard of a loss of power is written down
	return e
}

// start serves what is at the medium's place, from the state that is on the disk: a crash leaves as much.
func (e *eraseRig) start() {
	e.t.Helper()
	e.keep()
	e.serve()
}

func (e *eraseRig) keep() {
	dir := e.t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(e.dir)); err != nil {
		e.t.Fatal(err)
	}
	e.dir = dir
}

func (e *eraseRig) serve() {
	e.t.Helper()
	e.rig = rigOn(e.t, e.disk, func(o *LUOptions) { o.AllowFormat, o.AllowSanitize, o.StateDir = !e.forbidden, !e.forbidden, e.dir })
}

// crashed is a medium as a crash leaves it, with what its former server still has under way no more its own.
func (e *eraseRig) crashed() (letGo func()) {
	old := e.disk
	e.disk = newDisk(1<<20, 512)
	e.disk.id = old.id
	copy(e.disk.data, pattern(1<<20, 3))
	return old.letGo
}

func (e *eraseRig) whole() bool  { return bytes.Equal(e.disk.data, pattern(1<<20, 3)) }
func (e *eraseRig) erased() bool { return !bytes.Contains(e.disk.data, pattern(512, 3)[:16]) }

func (e *eraseRig) is(what string, key SenseKey, asc ASC) {
	e.t.Helper()
	if res := e.run(e.n, nil, 0, tur); res.key() != key || res.asc() != asc {
		e.t.Errorf("%s: TEST UNIT READY ends with %v %X/%04X", what, res.Status, res.key(), res.asc())
	}
}

var erasures = []struct {
	name, cdb string
	list      []byte
	running   ASC
	failed    ASC
}{
	{"FORMAT UNIT", format, []byte{0, 2, 0, 0}, ASCFormatInProgress, ASCFormatFailed},
	{"BLOCK ERASE", sanitize, nil, ASCSanitizeInProgress, ASCSanitizeFailed},
	{"CRYPTOGRAPHIC ERASE", "48 a3 00 00 00 00 00 00 00 00", nil, ASCSanitizeInProgress, ASCSanitizeFailed},
	{"OVERWRITE", "48 a1 00 00 00 00 00 00 08 00", []byte{2, 0, 0, 4, 0xAA, 0xAA, 0xAA, 0xAA}, ASCSanitizeInProgress, ASCSanitizeFailed},
}

// SBC-4 section 4.11: an erasure that was accepted is completed, whatever happens to the device server. Until then the unit is
// not ready; afterwards, nothing is erased any more.
func TestAnInterruptedErasureGoesOn(t *testing.T) {
	for _, c := range erasures {
		t.Run(c.name, func(t *testing.T) {
			e := newEraseRig(t)
			hold(e.disk)
			e.good(c.list, 0, c.cdb)
			defer e.crashed()()
			hold(e.disk)
			e.start()
			<-e.disk.arrived
			e.is("after a crash", NotReady, c.running)
			e.disk.letGo()
			e.lu.background.Wait()
			if e.is("completed", 0, 0); !e.erased() {
				t.Error("the medium is not erased")
			}
			copy(e.disk.data, pattern(1<<20, 3))
			e.start()
			e.lu.background.Wait()
			if e.is("the next start", 0, 0); !e.whole() {
				t.Error("a later start erases what was written after the erasure")
			}
		})
	}
}

// Another medium that has come to the place of one that was to be erased is not erased, and is not taken for an erased one.
func TestAnInterruptedErasureTouchesNoOtherMedium(t *testing.T) {
	for _, c := range erasures {
		t.Run(c.name, func(t *testing.T) {
			e := newEraseRig(t)
			hold(e.disk)
			e.good(c.list, 0, c.cdb)
			defer e.crashed()()
			e.disk.id = "backup"
			e.start()
			e.lu.background.Wait()
			if e.is("another medium", MediumError, c.failed); !e.whole() {
				t.Error("another medium was erased")
			}
			e.disk.id = "medium"
			e.start()
			e.lu.background.Wait()
			if e.is("the medium again", 0, 0); !e.erased() {
				t.Error("the medium is not erased")
			}
		})
	}
}

// An erasure goes on unasked only where the operator still wants it, of a medium that is known: another one may have come to where no more
// than the place is known, or into the same file.
func TestAnErasureThatWasGivenUpIsNotTakenUpByAStart(t *testing.T) {
	ways := map[string]func(*testing.T, *eraseRig){
		"its volume was forgotten": func(t *testing.T, e *eraseRig) {
			e.keep()
			l, err := filepath.Glob(filepath.Join(e.dir, StateFile("*")))
			if err != nil || len(l) != 1 {
				t.Fatal(l, err)
			}
			key := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(l[0]), "lu-"), ".json")
			if err := ForgetUnit(e.dir, key, true); err != nil {
				t.Fatal(err)
			}
		},
		"erasing is not configured": func(_ *testing.T, e *eraseRig) { e.forbidden = true },
		"only its place is known":   func(_ *testing.T, e *eraseRig) { e.disk.place = true },
	}
	for way, do := range ways {
		for _, c := range erasures {
			t.Run(way+", "+c.name, func(t *testing.T) {
				e := newEraseRig(t)
				hold(e.disk)
				e.good(c.list, 0, c.cdb)
				defer e.crashed()()
				do(t, e)
				for range 2 { // also once it is as it was
					e.start()
					e.lu.background.Wait()
					if e.is("given up", MediumError, c.failed); !e.whole() {
						t.Fatal("it goes on")
					}
					e.forbidden, e.disk.place = false, false
				}
				e.good(c.list, 0, c.cdb)
				e.lu.background.Wait()
				if e.is("repeated", 0, 0); !e.erased() {
					t.Error("the medium is not erased")
				}
			})
		}
	}
}

// A unit whose medium hung when its volume was forgotten closes after that.
func TestAForgottenErasureStaysGivenUpWhenItsUnitClosesLate(t *testing.T) {
	e := newEraseRig(t)
	copy(e.disk.data, pattern(1<<20, 3))
	hold(e.disk)
	e.good(nil, 0, "48 83 00 00 00 00 00 00 00 00")
	<-e.disk.arrived
	if err := e.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	e.lu.Forget(true)
	e.lu.stopNow()
	e.disk.letGo()
	e.lu.Close()
	if e.erased() {
		t.Fatal("the erasure was over before the stop")
	}
	e.start()
	e.lu.background.Wait()
	if e.is("the next start", MediumError, ASCSanitizeFailed); e.erased() {
		t.Error("it goes on")
	}
}

// A command that was refused erases nothing, now or later: also where its refusal is for the state directory, which may have
// taken what it says it has not.
func TestARefusedErasureErasesNothing(t *testing.T) {
	for _, c := range erasures {
		for _, step := range []string{notSaved, savedStill} {
			t.Run(c.name+", "+step, func(t *testing.T) {
				e := newEraseRig(t)
				copy(e.disk.data, pattern(1<<20, 3))
				fail := failStorage(t, func() {})
				fail.Store(step)
				if res := e.run(e.n, c.list, 0, c.cdb); res.key() != HardwareError {
					t.Fatalf("%v %X/%04X", res.Status, res.key(), res.asc())
				}
				e.keep()
				fail.Store("")
				e.serve()
				e.lu.background.Wait()
				if e.is("the next start", 0, 0); !e.whole() {
					t.Error("it erased")
				}
			})
		}
	}
}

// An erasure that ended with an error is not begun again by a start, which keeps the medium closed (SBC-3 section 4.11.3) until
// it is erased or, for SANITIZE, EXIT FAILURE MODE.
func TestAFailedErasureKeepsTheMediumClosedAndErasesNothing(t *testing.T) {
	for _, c := range erasures {
		t.Run(c.name, func(t *testing.T) {
			e := newEraseRig(t)
			e.disk.fail = func(*blockdev.Request) error { return errors.New("broken") }
			e.run(e.n, c.list, 0, c.cdb)
			e.lu.background.Wait()
			e.disk.fail = nil
			copy(e.disk.data, pattern(1<<20, 3))
			e.is("failed", MediumError, c.failed)
			if res := e.run(e.n, make([]byte, 512), 0, "2a 00 00000000 00 0001 00"); res.key() != MediumError {
				t.Errorf("a write: %v %X/%04X", res.Status, res.key(), res.asc())
			}
			e.start()
			e.lu.background.Wait()
			if e.is("the next start", MediumError, c.failed); !e.whole() {
				t.Error("a failed command erases at the next start")
			}
			if e.good(nil, 0, exitMode); c.failed == ASCFormatFailed {
				e.is("EXIT FAILURE MODE", MediumError, c.failed)
				e.good([]byte{0, 0, 0, 0}, 0, format)
			}
			e.is("over", 0, 0)
			e.start()
			e.is("over, the next start", 0, 0)
		})
	}
}

// While it is not certain what the next start would find, the unit is NOT READY: what hosts wrote could be erased by that start.
func TestNothingIsWrittenBeforeTheEndOfAnErasureIsOnTheDisk(t *testing.T) {
	for _, n := range []int{2, 3} { // the write of what has begun, and of what is over
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			e := newEraseRig(t)
			failed := make(chan struct{})
			var calls atomic.Int32
			var fail *atomic.Value
			fail = failStorage(t, func() {
				switch calls.Add(1) {
				case int32(n):
					fail.Store(savedStill)
					close(failed)
				case int32(n + 1):
					fail.Store("")
				}
			})
			_, h := e.rig.start(e.n, cdb(sanitized), nil, 0)
			<-failed
			e.is("in doubt", NotReady, ASCSanitizeInProgress)
			h.wait(t)
			e.is("written down", 0, 0)
		})
	}
}

// An EXIT FAILURE MODE that is refused leaves the medium closed.
func TestAFailedExitTakesNoErasureBack(t *testing.T) {
	e := newEraseRig(t)
	e.disk.fail = func(*blockdev.Request) error { return errors.New("broken") }
	e.run(e.n, nil, 0, sanitized)
	e.disk.fail = nil
	fail := failStorage(t, func() {})
	fail.Store(savedStill)
	if res := e.run(e.n, nil, 0, exitMode); res.key() != HardwareError {
		t.Fatalf("%v %X/%04X", res.Status, res.key(), res.asc())
	}
	e.is("in doubt", NotReady, ASCSanitizeInProgress)
	fail.Store("")
	e.lu.background.Wait()
	e.is("refused", MediumError, ASCSanitizeFailed)
	e.start()
	e.is("refused, the next start", MediumError, ASCSanitizeFailed)
}

// Without AUSE only SANITIZE ends the failure of SANITIZE (SBC-3 section 5.24.1).
func TestExitFailureModeOpensOnlyWhatSanitizeAllowsIt(t *testing.T) {
	e := newEraseRig(t)
	e.disk.fail = func(*blockdev.Request) error { return errors.New("broken") }
	e.run(e.n, nil, 0, "48 02 00 00 00 00 00 00 00 00")
	for range 2 {
		if res := e.run(e.n, nil, 0, exitMode); res.key() != IllegalRequest || res.asc() != ASCInvalidFieldInCDB {
			t.Errorf("%v %X/%04X", res.Status, res.key(), res.asc())
		}
		e.is("without AUSE", MediumError, ASCSanitizeFailed)
		e.start() // whose medium is broken as well
	}
	e.disk.fail = nil
	e.good(nil, 0, sanitized)
	e.is("repeated", 0, 0)
}

// A unit that closes while its erasure runs leaves the rest to the next start.
func TestAStopInterruptsAnErasure(t *testing.T) {
	e := newEraseRig(t)
	copy(e.disk.data, pattern(1<<20, 3))
	hold(e.disk)
	e.good(nil, 0, "48 83 00 00 00 00 00 00 00 00")
	<-e.disk.arrived
	if err := e.target.RemoveLUN(0); err != nil {
		t.Fatal(err)
	}
	e.lu.stopNow()
	e.disk.letGo()
	e.lu.Close()
	if e.erased() {
		t.Fatal("the erasure was over before the stop")
	}
	e.start()
	e.lu.background.Wait()
	if e.is("the next start", 0, 0); !e.erased() {
		t.Error("the medium is not erased")
	}
}
