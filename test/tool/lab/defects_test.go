package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-storage/sluice/internal/state"
)

func TestADefectInAnyLogOfARunIsFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, second), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("log.txt", "step one\n")
	write("sluiced.txt", "serving\nended\n")
	if err := defects(dir); err != nil {
		t.Errorf("of logs without one: %v", err)
	}
	told := (&state.IllegalError{What: "a task", From: "free", To: "answered"}).Error()
	write(filepath.Join(second, "sluiced.txt"), "serving\n"+told+"; it goes on.\n")
	if err := defects(dir); !errors.Is(err, errDefect) || !strings.Contains(err.Error(), second+"/sluiced.txt: "+told) {
		t.Errorf("of a log of the second guest: %v", err)
	}
}

func TestProgramsOnTheHostPanicAtAnIllegalMove(t *testing.T) {
	r := &Run{lab: &lab{}, Dir: t.TempDir(), Ctx: t.Context()}
	defer func() {
		for _, f := range r.cleanup {
			f()
		}
	}()
	p, err := r.start("/bin/sh", "-c", "echo strict: $"+state.Strict)
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	if b, err := os.ReadFile(filepath.Join(r.Dir, "sh.txt")); err != nil || string(b) != "strict: 1\n" {
		t.Errorf("a program beside the guest: %q, %v", b, err)
	}
	if text, err := r.tool("/bin/sh", "-c", "echo strict: $"+state.Strict); err != nil || !strings.HasSuffix(text, "strict: 1\n") {
		t.Errorf("a command: %q, %v", text, err)
	}
}
