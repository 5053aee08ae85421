package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-storage/sluice/test/lib/storm"
)

// TestAFailedRunIsDoneAgainAsItWasAndThenHasPassed has a tool that fails as long as a file is there, and says what it was told.
func TestAFailedRunIsDoneAgainAsItWasAndThenHasPassed(t *testing.T) {
	dir := t.TempDir()
	broken, told := filepath.Join(dir, "broken"), filepath.Join(dir, "told")
	script := "#!/bin/sh\necho $" + storm.EnvSeed + " $" + storm.EnvRun + " $" + storm.EnvRounds + " >>" + told + "\necho '{\"kills\": 2}' >>$" + storm.EnvCounts + "\ntest ! -e " + broken + " && echo '--- PASS: TestIt'\n"
	for path, text := range map[string]string{filepath.Join(dir, "it"): script, broken: ""} {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	it := tool{"it", dir, "TestIt", 7, time.Minute}
	st := newState(1)
	if ok, err := st.next(it, dir); ok || err != nil {
		t.Fatalf("the run: passed %v, %v", ok, err)
	}
	file := filepath.Join(dir, "state")
	if err := st.save(file); err != nil {
		t.Fatal(err)
	}
	st, err := load(file)
	if err != nil || len(st.Failures) != 1 {
		t.Fatalf("%v; failures %v", err, st.Failures)
	}
	if failed, err := st.again(t.Context(), []tool{it}, dir); failed != 1 || err != nil || len(st.Failures) != 1 {
		t.Fatalf("again: %d failed, %v, failures %v", failed, err, st.Failures)
	}
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	if failed, err := st.again(t.Context(), []tool{it}, dir); failed != 0 || err != nil || len(st.Failures) != 0 || len(st.Mended) != 1 {
		t.Fatalf("mended: %d failed, %v, failures %v, mended %v", failed, err, st.Failures, st.Mended)
	}
	if n := st.Counts["it"]["kills"]; n != 6 || st.Runs["it"] != 1 {
		t.Errorf("%d kills were counted in %d runs", n, st.Runs["it"])
	}
	b, err := os.ReadFile(told)
	if err != nil {
		t.Fatal(err)
	}
	if lines := string(b); len(lines)%3 != 0 || lines[:len(lines)/3] != lines[len(lines)/3:2*len(lines)/3] {
		t.Errorf("the runs were told\n%s", lines)
	}
	if a, b := st.seedOf("it", 1), st.seedOf("it", 2); max(a, b)-min(a, b) < 1<<20 {
		t.Error("runs have seeds beside one another, and some of their sequences in common")
	}
}

func TestFailuresOfEarlierRunnersAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(file, []byte(`{"seed": 1, "failures": ["drymemory run 3 seed 1000007"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	st, err := load(file)
	if err != nil || len(st.Failures) != 1 || st.Failures[0] != (part{"drymemory", 3, 1000007, 12}) {
		t.Errorf("%v, failures %v", err, st)
	}
}
