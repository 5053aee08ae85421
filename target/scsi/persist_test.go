package scsi

import (
	"errors"
	"os"
	"slices"
	"sync"
	"testing"
)

// statusLog notes when the status went out.
type statusLog struct {
	*host
	note func(string)
}

func (s statusLog) Complete(c *Command) {
	s.note("status " + c.Status.String())
	s.host.Complete(c)
}

// watchStorage notes the steps that make state durable, and fails one of them if asked to.
func watchStorage(t *testing.T) (note func(string), take func() []string, fail *string) {
	old := storage
	t.Cleanup(func() { storage = old })
	var mu sync.Mutex
	var steps []string
	fail = new(string)
	note = func(s string) { mu.Lock(); steps = append(steps, s); mu.Unlock() }
	step := func(s string, do func() error) error {
		note(s)
		if s == *fail {
			return errors.New("broken")
		}
		return do()
	}
	storage.syncFile = func(f *os.File) error { return step("sync file", func() error { return old.syncFile(f) }) }
	storage.rename = func(a, b string) error { return step("rename", func() error { return old.rename(a, b) }) }
	storage.syncDir = func(d string) error { return step("sync directory", func() error { return old.syncDir(d) }) }
	return note, func() []string { mu.Lock(); defer mu.Unlock(); s := steps; steps = nil; return s }, fail
}

// SPC-4 section 5.13.5: what APTPL promises holds from the status on, also if power is lost right after it: the state is
// written and synced under another name, renamed, and the directory synced, before the initiator hears GOOD. The same
// goes for saved mode pages. Where a step fails nothing has changed.
func TestStateIsDurableBeforeTheStatus(t *testing.T) {
	note, take, fail := watchStorage(t)
	dir := t.TempDir()
	r := newRig(t, func(o *LUOptions) { o.StateDir = dir })
	r.lu.background.Wait()
	// The directories; the note of the boot; that the nexus has heard of it.
	if s := take(); !slices.Equal(s, []string{"sync directory", "sync directory", "sync file", "rename", "sync directory", "sync file", "rename", "sync directory"}) {
		t.Errorf("the directories and the first notes: %q", s)
	}
	run := func(cdbs string, list []byte) []string {
		h := &host{t: t, out: list, done: make(chan struct{})}
		c := &Command{CDB: cdb(cdbs), ExpectOut: int64(len(list)), Mover: statusLog{h, note}, Attr: Simple}
		r.n.Execute(c)
		h.wait(t)
		return take()
	}
	register := []byte{15: 5, 20: 1, 23: 0}
	durable := []string{"sync file", "rename", "sync directory", "status GOOD"}
	if s := run("5f 06 00 00 00 00000018 00", register); !slices.Equal(s, durable) {
		t.Errorf("REGISTER with APTPL: %q", s)
	}
	if s := run("5f 01 03 00 00 00000018 00", []byte{7: 5, 23: 0}); !slices.Equal(s, durable) {
		t.Errorf("RESERVE: %q", s)
	}
	sel := []byte{0, 0, 0, 0, 0x0A, 10, 0x20 | 4, 0x10, 0, 0, 0, 0, 0xFF, 0xFF, 0, 0}
	if s := run("15 11 00 00 10 00", sel); !slices.Equal(s, durable) {
		t.Errorf("MODE SELECT with SP: %q", s)
	}
	for _, *fail = range []string{"sync file", "rename", "sync directory"} {
		s := run("5f 02 03 00 00 00000018 00", []byte{7: 5, 23: 0}) // RELEASE
		if s[len(s)-1] != "status CHECK CONDITION" || s[len(s)-2] != *fail {
			t.Errorf("%s fails: %q", *fail, s)
		}
		if key, kind := r.reservation(r.n); key != 5 || kind != prExclusiveAccess {
			t.Errorf("%s failed: reservation %d of type %d", *fail, key, kind)
		}
	}
	*fail = ""
	// The last that gives APTPL up is durable, too: nothing must come back.
	if s := run("5f 00 00 00 00 00000018 00", []byte{7: 5, 15: 5, 23: 0}); !slices.Equal(s, durable) {
		t.Errorf("REGISTER without APTPL: %q", s)
	}
	if s := run("5f 00 00 00 00 00000018 00", []byte{7: 5, 23: 0}); !slices.Equal(s, durable) {
		t.Errorf("without APTPL: %q", s)
	}
}
