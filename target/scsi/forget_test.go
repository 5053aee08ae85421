package scsi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A medium that an erasure has left half erased is not READY because its volume was forgotten in between.
func TestAnErasureIsNotForgottenWithItsVolume(t *testing.T) {
	dir := t.TempDir()
	state := luState{Name: "vol0", Erasure: &erasureNote{Action: 3, Medium: "another", Begun: true}}
	if err := errors.Join(writeDurably(filepath.Join(dir, StateFile("key")), &state), ForgetUnit(dir, "key", true)); err != nil {
		t.Fatal(err)
	}
	lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "vol0", StateKey: "key", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer lu.Close()
	if lu.Unerased() == "" {
		t.Error("the unit is ready")
	}
}

// A unit whose medium hung when it was deleted closes after that: nothing would remove what it wrote then.
func TestAUnitThatClosesLateLeavesNoState(t *testing.T) {
	dir := t.TempDir()
	lu, err := NewLogicalUnit(LUOptions{Device: newDisk(1<<20, 512), Name: "vol0", StateKey: "key", StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	lu.Forget(false)
	if err := ForgetUnit(dir, "key", false); err != nil {
		t.Fatal(err)
	}
	lu.Close()
	if l, err := os.ReadDir(dir); err != nil || len(l) > 0 {
		t.Errorf("%v is left, %v", l, err)
	}
}

// States of units that are not known any more go some time, oldest first: of those that promise nothing to hosts. What cannot be read may.
func TestStatesOfUnitsThatAreLongGoneAreRemoved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state[1]")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	promises := map[string]string{
		"erased": `{"erasure": {"begun": true}}`, "fenced": `{"reservations": {"Regs": [{"Key": 1}]}}`, "owed": `{"power": {"owed_any": true}}`, "damaged": "{",
		"protected": `{"modes": {"0a.00": "AA=="}}`, "written through": `{"current": {"08.00": "AA=="}}`,
	}
	all, n := map[string]string{}, 0
	add := func(name, text string) {
		t.Helper()
		path, old := filepath.Join(dir, name), time.Now().Add(time.Duration(n-10000)*time.Hour)
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, old, old)); err != nil {
			t.Fatal(err)
		}
		n++
		all[name] = text
	}
	for key, text := range promises {
		add(StateFile(key), text)
	}
	add(StateFile("served"), "{}")
	add("other.json", "{}")
	for k := range maxGone + 2 {
		add(StateFile(fmt.Sprint("gone", k)), "{}")
	}
	if err := ForgetUnit(dir, "gone0", true); err != nil { // the latest
		t.Fatal(err)
	}
	if err := TidyUnits(dir, func(key string) bool { return key == "served" }); err != nil {
		t.Fatal(err)
	}
	for name := range all {
		_, err := os.Stat(filepath.Join(dir, name))
		if want := name != StateFile("gone1") && name != StateFile("gone2"); want != (err == nil) || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
